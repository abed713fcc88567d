"""Tests of mouse actions: a run started in one notebook, watched and stopped in another."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from playwright.sync_api import expect

from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.session import load
from tests.browser.lab import id_in, jupyter_lab, still_alive, stop_in, write_notebook

CACHE = "BROWSER"
HOSTILE = "<img src=x>{__import__('os')}"
TRAIN = [
    "%load_ext ignite_tf_magic",
    f"%%ignite_tf start {CACHE} --workers 1\n"
    "import itertools, time\n"
    "for step in itertools.count(): print('step', step); time.sleep(0.2)",
]
WATCH = ["%load_ext ignite_tf_magic", "%ignite_tf panel"]


@pytest.fixture
def cache(ignite, client):
    load(
        CACHE, {"x": np.arange(100), "label": np.arange(100) % 3}, options=ignite.connect_options, report=str
    )
    yield CACHE
    client.destroy_cache(CACHE)


def test_a_run_streams_into_a_cell_and_is_stopped_from_a_panel_elsewhere(ignite, cache, context, tmp_path):
    (tmp_path / "notebooks").mkdir()
    write_notebook(tmp_path / "notebooks/train.ipynb", TRAIN)
    write_notebook(tmp_path / "notebooks/watch.ipynb", WATCH)
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {"IGNITE_TF_CLUSTER": endpoints, "IGNITE_TF_HOME": str(tmp_path / "home")}
    with jupyter_lab(tmp_path, env) as lab:
        watch = lab.open(context, "watch.ipynb")
        watch.run(0)
        watch.run(1)
        panel = watch.output(1)
        expect(panel).to_contain_text("ended runs")
        expect(panel).not_to_contain_text(CACHE)

        train = lab.open(context, "train.ipynb")
        train.run(0)
        train.run(1)
        cell = train.output(1)
        expect(cell).to_contain_text("step 2")
        run_id = id_in(cell)
        expect(cell).to_contain_text(f"1 worker on localhost, reading {CACHE}")

        # The panel refreshes itself, and elements under the mouse keep their place.
        row = panel.locator(".itm-row", has_text=run_id)
        expect(row).to_contain_text("running")
        expect(row).to_contain_text(CACHE)
        stop = row.get_by_role("button", name=f"Stop run {run_id}", exact=True).element_handle()
        before_a_while = row.inner_text()
        expect(cell).to_contain_text("step 30")
        expect(row).not_to_have_text(before_a_while, use_inner_text=True)
        assert stop.evaluate("element => element.isConnected")
        expect(cell).not_to_contain_text("stopped")

        stop_in(row)
        expect(panel).to_contain_text(f"{run_id}: stopped")
        expect(row).not_to_contain_text("running")
        expect(row).to_contain_text("stopped")
        expect(row.get_by_role("button", name="Stop run")).to_be_disabled()
        expect(cell).to_contain_text(f"run {run_id}: stopped after")
        expect(cell).to_contain_text(f"run {run_id} did not succeed; above is why")
        started = [lab.server, *lab.server.children(recursive=True)]
        assert len(started) > 2  # a server and two kernels
        for notebook in (watch, train):
            notebook.page.close()
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


@pytest.mark.nightly
def test_tensorboard_opens_inside_the_notebook_and_reads_igfs(desk):
    """Nightly. Shorter:
    tests/tensorboard/test_tensorboard_commands.py::test_the_notebook_shows_it_in_a_frame
    """
    cells = [WRITE_EVENTS, "%ignite_tf tensorboard --logdir igfs:///browser", "%ignite_tf tensorboard --stop"]
    notebook = desk.open("board", *cells)
    notebook.run(1)
    notebook.run(2)
    frame = notebook.page.frame_locator("iframe.ignite-tf-tensorboard")
    expect(frame.locator("body")).to_contain_text("shown_loss")
    expect(frame.locator("body")).to_contain_text("one")
    notebook.run(3)
    expect(notebook.output(3)).to_contain_text("stopped")


@pytest.fixture
def hostile(client):
    client.get_or_create_cache(CacheConfig(HOSTILE))
    yield
    client.destroy_cache(HOSTILE)


def test_the_sidebar_sees_runs_and_caches_while_every_kernel_is_busy(cache, hostile, desk):
    notebook = desk.open("busy", TRAIN[1], "")
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("step 2")
    page = notebook.page
    page.get_by_role("tab", name="Ignite").click()
    sidebar = page.locator("#ignite-tf-magic")
    row = sidebar.locator(".itm-row", has_text=cache.lower())
    expect(row).to_contain_text("running the script")

    sidebar.get_by_role("tab", name="caches").click()
    hostile_row = sidebar.locator(".itm-row", has_text=HOSTILE)
    expect(hostile_row).to_be_visible()
    expect(sidebar.locator("img")).to_have_count(0)
    hostile_row.get_by_role("button", name="train on").click()
    expect(hostile_row).to_contain_text("no column to predict")
    expect(sidebar.locator(".itm-row", has_text=cache)).to_contain_text("100 rows")
    sidebar.get_by_role("button", name=f"columns of {cache}").click()
    expect(sidebar.locator(".itm-detail")).to_contain_text("X")
    sidebar.get_by_role("button", name=f"train on {cache}").click()
    form = sidebar.get_by_role("group", name=f"train on {cache}")
    form.get_by_label("predict").select_option("x")
    form.get_by_label("workers").fill("2")
    form.get_by_role("button", name="write the cell").click()
    expect(page.locator(".jp-Notebook")).to_contain_text(f"%%ignite_tf start {cache} --workers 2")
    expect(page.locator(".jp-Notebook")).to_contain_text('column(row["val"], "x")[0]')

    sidebar.get_by_role("tab", name="cluster").click()
    expect(sidebar.get_by_role("table", name="partitions by host and node")).to_contain_text(cache)

    sidebar.get_by_role("tab", name="runs").click()
    stop_in(row)
    expect(notebook.output(1)).to_contain_text("stopped after")
    expect(row).to_contain_text("stopped")


def test_who_is_not_logged_in_sees_and_does_nothing(desk):
    for address, data in (("panel", None), ("act", b'{"action": "stop", "about": "x"}')):
        with pytest.raises(HTTPError) as error:
            urlopen(Request(f"{desk.lab.url}ignite-tf/{address}", data=data), timeout=300)
        error.value.close()
        assert error.value.code == 403, address
    with urlopen(f"{desk.lab.url}ignite-tf/panel.js", timeout=300) as answer:
        assert "/login" in answer.url
    assert "runs" in desk.lab.call("GET", "ignite-tf/panel")
