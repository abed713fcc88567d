"""What a person does with the mouse: a run started in one notebook, watched and stopped in another."""

from __future__ import annotations

import re

import numpy as np
import psutil
import pytest
from playwright.sync_api import expect

from ignite_tf_magic.session import load
from tests.browser.lab import browser, jupyter_lab, still_alive, write_notebook

CACHE = "BROWSER"
TRAIN = [
    "%load_ext ignite_tf_magic",
    f"%%ignite_tf start {CACHE} --workers 1\n"
    "import itertools, time\n"
    "for step in itertools.count(): print('step', step); time.sleep(0.2)",
]
WATCH = ["%load_ext ignite_tf_magic", "%ignite_tf panel"]


@pytest.fixture
def cache(ignite, client):
    load(CACHE, {"x": np.arange(100)}, options=ignite.connect_options, report=str)
    yield CACHE
    client.destroy_cache(CACHE)


def test_a_run_streams_into_a_cell_and_is_stopped_from_a_panel_elsewhere(ignite, cache, tmp_path):
    (tmp_path / "notebooks").mkdir()
    write_notebook(tmp_path / "notebooks/train.ipynb", TRAIN)
    write_notebook(tmp_path / "notebooks/watch.ipynb", WATCH)
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {"IGNITE_TF_CLUSTER": endpoints, "IGNITE_TF_HOME": str(tmp_path / "home")}
    before = set(psutil.Process().children(recursive=True))
    with browser(tmp_path) as context, jupyter_lab(tmp_path, env) as lab:
        watch = lab.open(context, "watch.ipynb")
        watch.run(0)
        watch.run(1)
        panel = watch.output(1)
        expect(panel).to_contain_text("No run is live")

        train = lab.open(context, "train.ipynb")
        train.run(0)
        train.run(1)
        cell = train.output(1)
        expect(cell).to_contain_text("step 2")
        run_id = re.match(rf"run (\S+): 1 worker on localhost, reading {CACHE}", cell.inner_text().strip())[1]

        # Nobody refreshes the panel.
        row = panel.locator(".widget-hbox", has_text=run_id)
        expect(row).to_contain_text("running")
        expect(row).to_contain_text(CACHE)
        expect(cell).to_contain_text("step 9")
        expect(cell).not_to_contain_text("stopped")

        row.get_by_role("button", name="Stop").click()
        expect(panel).to_contain_text(f"{run_id}: stopped")
        expect(row).not_to_contain_text("running")
        expect(row).to_contain_text("stopped")
        expect(row.get_by_role("button", name="Stop")).to_be_disabled()
        expect(cell).to_contain_text(f"run {run_id}: stopped after")
        expect(cell).to_contain_text(f"run {run_id} did not succeed: it is stopped")
        started = set(psutil.Process().children(recursive=True)) - before
        assert len(started) > 3  # a server, two kernels, a browser
    assert still_alive(started) == []


WRITE_EVENTS = """
import fsspec, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.record_writer import RecordWriter
fs = fsspec.filesystem("igfs", auto_mkdir=True)
with fs.open("/browser/one/events.out.tfevents.1", "wb") as file:
    writer = RecordWriter(file)
    for step in range(5):
        event = Event(wall_time=time.time(), step=step, summary=scalar_pb("shown_loss", 1 / (step + 1)))
        writer.write(event.SerializeToString())
"""


@pytest.mark.long
def test_tensorboard_opens_inside_the_notebook_and_reads_igfs(ignite, tmp_path):
    (tmp_path / "notebooks").mkdir()
    cells = ["%load_ext ignite_tf_magic", WRITE_EVENTS, "%ignite_tf tensorboard --logdir igfs:///browser"]
    write_notebook(tmp_path / "notebooks/board.ipynb", [*cells, "%ignite_tf tensorboard --stop"])
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {"IGNITE_TF_CLUSTER": endpoints, "IGNITE_TF_HOME": str(tmp_path / "home")}
    with browser(tmp_path) as context, jupyter_lab(tmp_path, env) as lab:
        notebook = lab.open(context, "board.ipynb")
        for index in range(3):
            notebook.run(index)
        frame = notebook.page.frame_locator("iframe.ignite-tf-tensorboard")
        expect(frame.locator("body")).to_contain_text("shown_loss", timeout=60_000)
        expect(frame.locator("body")).to_contain_text("one")
        notebook.run(3)
        expect(notebook.output(3)).to_contain_text("stopped")
