"""Tests of scripts that `draft` writes: each trains unchanged, on all rows that have a label."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest

from ignite_tf_magic.errors import ConfigError, SchemaError
from ignite_tf_magic.session import load, open_session
from ignite_tf_magic.ui.drafts import chosen_label, draft_of, labels_of, magic_cell, start_words
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.shell.cli import main

PLAY = """
import sys, math
for path in sys.argv[1:]:
    made = {}
    exec(compile(open(path).read(), path, "exec"), made)
    history = made["model"].history.history
    assert len(history["loss"]) == 5 and all(map(math.isfinite, history["loss"])), history
    rows = sum(int(label.shape[0]) for _, label in made["rows"])
    print(path.rpartition("/")[2], rows, *made["model"].output_shape[1:])
"""


def columns(num_rows: int = 90) -> dict:
    random = np.random.default_rng(0)
    return {
        "width": random.normal(size=num_rows),
        "pe'tal {x}": random.integers(0, 9, num_rows),
        "pixels": random.integers(0, 16, (num_rows, 4), np.uint8),
        "note": [f"n{row}" for row in range(num_rows)],
        "label": np.arange(num_rows) % 3,
        "kind": np.array(["setosa", "it's", 'a "b"'], object)[np.arange(num_rows) % 3],
        "price": [
            None if row % 10 == 0 else math.nan if row % 10 == 5 else float(row) for row in range(num_rows)
        ],
        "age": [None if row % 9 == 0 else row % 7 for row in range(num_rows)],
        "day": np.datetime64("2026-01-01") + np.arange(num_rows),
    }


@pytest.fixture(scope="module")
def cache(ignite):
    load("DRAFTED", columns(), options=ignite.connect_options, replace=True, report=str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
        yield "DRAFTED"
        with open_session(report=str) as session:
            session.client.destroy_cache("DRAFTED")


def test_each_kind_of_label_is_learnt_from_all_rows_that_have_it(cache, tmp_path):
    for label in ("label", "kind", "price", "age"):
        with redirect_stdout(io.StringIO()) as printed:
            assert main(["draft", cache, "--label", label]) == 0
        (tmp_path / label).write_text(printed.getvalue())
    paths = [str(tmp_path / label) for label in ("label", "kind", "price", "age")]
    done = subprocess.run([sys.executable, "-c", PLAY, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [
        line for line in done.stdout.splitlines() if line.startswith(("label ", "kind ", "price ", "age "))
    ]
    assert told == ["label 90 3", "kind 90 3", "price 72 1", "age 80 7"]


def test_what_is_no_number_is_left_out_and_said(cache):
    with open_session(report=str) as session:
        found = session.columns(cache)
        [numbers] = session.profile(cache, ["label"]).columns
    script = draft_of(found, numbers)
    assert "vary in length: note, kind, day\n" in script
    assert (
        "keras.Input([16])" in script
    )  # width, pe'tal {x}, four pixels, price, age, and flags for missing values
    assert labels_of(found)[:2] == ("label", "age") and "day" not in labels_of(found)
    assert chosen_label(found) == "label"
    assert chosen_label(found, "LABEL") == "label"
    with pytest.raises(
        ConfigError, match="--label pixels cannot be predicted; columns of DRAFTED that can: label, "
    ):
        chosen_label(found, "pixels")
    with pytest.raises(
        SchemaError, match="--label names the field 'lable', and there is none; did you mean label"
    ):
        chosen_label(found, "lable")


def test_texts_without_end_are_no_classes(cache):
    with open_session(report=str) as session:
        found = session.columns(cache)
        [numbers] = session.profile(cache, ["note"]).columns
    with pytest.raises(ConfigError, match="90 different texts in 90 rows"):
        draft_of(found, numbers)


@pytest.mark.parametrize("name", ["{x}", "$HOME", "a\nb"])
def test_a_name_that_ipython_would_fill_in_is_put_into_no_cell(name):
    with pytest.raises(ConfigError, match="cannot stand in the first line"):
        magic_cell(start_words(name, []), "pass")


@pytest.mark.parametrize("name", ["MNIST", "my cache", "A --detach", "it's", "\u00c4rzte", "a;b"])
def test_any_other_name_is_the_cache_and_nothing_else(name):
    first, _, script = magic_cell(start_words(name, ["--workers", "2"]), "pass\n").partition("\n")
    read = parse_line(first.removeprefix("%%ignite_tf "))
    assert (read.cache, read.num_workers, read.detach, script) == (name, 2, False, "pass\n")


def test_a_name_like_an_option_is_refused():
    with pytest.raises(ConfigError, match="begins with -"):
        start_words("--detach", [])
