"""Tests of `columns`, `sample` and `profile` in a real kernel: the output that users see in cells."""

from __future__ import annotations

import base64
import json


def test_columns_are_a_table(kernel, digits):
    result = kernel.run(f"%ignite_tf columns {digits}")
    assert result.error is None
    assert "uint8[64]" in result.text
    assert "<td" in result.shown[0]["text/html"]


def test_a_sample_is_a_short_frame_and_a_whole_variable(kernel, digits):
    result = kernel.run(f"%ignite_tf sample {digits} -n 3")
    assert "uint8[64] 0 0" in result.text
    assert "dataframe" in result.shown[0]["text/html"]
    kept = kernel.run(
        f"%ignite_tf sample {digits} -n 4 -o some\nprint(type(some).__name__, some.shape)\nlen(some.pixels[0])"
    )
    assert kept.error is None
    assert "some: 4 of 359 rows of key, pixels, label" in kept.text
    assert "DataFrame (4, 3)" in kept.text
    assert kept.text.strip().endswith("64")


def test_a_profile_is_tables_and_a_picture(kernel, digits):
    result = kernel.run(f"%ignite_tf profile {digits}")
    assert result.error is None, result.error
    assert f"cache {digits}: 359 rows" in result.text
    assert "label: 10 values" in result.text
    (picture,) = [data["image/png"] for data in result.shown if "image/png" in data]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert "<td" in result.shown[0]["text/html"]


def test_json(kernel, digits):
    found = json.loads(kernel.run(f"%ignite_tf profile {digits} label --json").stdout)
    assert [column["name"] for column in found["columns"]] == ["label"]
    assert sum(found["columns"][0]["histogram"]["counts"]) == 359


def test_errors_name_what_is_near(kernel, digits):
    result = kernel.run(f"%ignite_tf profile {digits} lable")
    assert "did you mean label?" in "".join(result.error["traceback"])


def test_tab_completes_the_cache(kernel, digits):
    reply = kernel.client.complete(f"%ignite_tf profile {digits[:6]}", reply=True, timeout=300)
    assert digits in reply["content"]["matches"]
