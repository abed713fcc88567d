"""Tests of `ignite-tf top` in textual's test terminal, on a real cluster."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load, open_session
from ignite_tf_magic.ui.shell.top import make_app, spark

CACHE = "TOPPED"


@pytest.fixture
def configured(tmp_path, ignite, client, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    monkeypatch.chdir(tmp_path)
    load(CACHE, {"x": np.arange(9)}, options=ignite.connect_options, report=str)
    yield ignite
    client.destroy_cache(CACHE)


async def seen(pilot, condition, what):
    """Wait until a condition on the screen is true."""
    for _ in range(3000):
        if condition():
            return
        await pilot.pause(0.1)
    raise AssertionError(f"{what}; the screen:\n{text_of(pilot.app)}")


def text_of(app):
    table = app.query_one("#runs")
    rows = [" ".join(map(str, table.get_row(key))) for key in table.rows]
    return "\n".join([*rows, str(app.query_one("#cluster").render()), str(app.query_one("#told").render())])


def test_a_run_is_seen_asked_about_and_stopped_by_keys(configured):
    with open_session(report=str) as session:
        run = session.start_run(
            RunRequest(CACHE, "import time\nprint('a line')\ntime.sleep(600)", tags=("slow",))
        )
        try:
            asyncio.run(keys(run))
        finally:
            run.stop()


async def keys(run):
    app = make_app("ignite-tf")
    async with app.run_test(size=(160, 40)) as pilot:
        await seen(pilot, lambda: run.id in text_of(app) and "running the script" in text_of(app), "the run")
        await seen(pilot, lambda: "3 nodes: " in text_of(app), "the nodes")
        await pilot.press("l")
        await seen(pilot, lambda: "a line" in text_of(app), "its output")
        await pilot.press("slash", *"nothing")
        await seen(pilot, lambda: run.id not in text_of(app).splitlines()[0], "no run of that name")
        await pilot.press("escape")
        await seen(pilot, lambda: run.id in text_of(app), "the run again")
        await pilot.press("s")
        await seen(pilot, lambda: "press s again" in text_of(app), "the question")
        await pilot.press("s")
        await seen(pilot, lambda: f"run {run.id}: stopped" in text_of(app), "the answer")
        await pilot.press("e")
        await seen(pilot, lambda: f"{run.id} stopped" in text_of(app), "it among those that have ended")
        await pilot.press("q")


def test_a_line_of_blocks():
    assert spark([]) == spark([1.0]) == ""
    assert spark([0.0, 1.0]) == "▁▁▁▁▁▁██████"
    assert spark([2.0, 2.0, 2.0]) == "▁" * 12
