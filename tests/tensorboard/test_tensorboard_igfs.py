"""Event files that live in Ignite, on real nodes."""

from __future__ import annotations

import time

import fsspec
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from ignite_tf_magic.tensorboard.record import STATUS_PATH
from tests.tensorboard.asking import ask, runs, steps, until_right
from tests.tensorboard.event_files import EventFile

IGFS = {"igfs": "ignite_tf_magic.igfs.filesystem.IgfsFileSystem"}


@pytest.fixture
def in_ignite(ignite) -> str:
    """The URI of a directory in Ignite."""
    fsspec.register_implementation("igfs", IGFS["igfs"], clobber=True)
    uri = f"igfs://{ignite.nodes[0].host}:{ignite.nodes[0].port}/tensorboard"
    files, path = fsspec.core.url_to_fs(uri)
    files.makedirs(path, exist_ok=True)
    yield uri
    files.rm(path, recursive=True)
    files.volume.close()


@pytest.mark.smoke
def test_runs_in_ignite_are_compared_while_they_write(show, in_ignite):
    EventFile(f"{in_ignite}/runs/a/events/train").scalar("loss", 1.0, 0)
    board = show({"": f"{in_ignite}/runs/*/events"}, protocols=IGFS)
    assert board.notes == ()
    until_right(lambda: runs(board), lambda found: found == ["a/train"])

    files, path = fsspec.core.url_to_fs(f"{in_ignite}/runs/b/events")
    files.makedirs(path)
    with files.open(
        f"{path}/events.out.tfevents.1.host", "ab"
    ) as live:  # stays open, like a summary writer's file
        writer = RecordWriter(live)
        for step in range(3):
            event = Event(wall_time=time.time(), step=step)
            event.summary.CopyFrom(scalar_pb("loss", 1.0 / (step + 1)))
            writer.write(event.SerializeToString())
            live.flush()
            until_right(lambda: steps(board, "b")[-1:], [step].__eq__)
    assert runs(board) == ["a/train", "b"]
    assert ask(board, STATUS_PATH[1:])["troubles"] == []


def test_a_removed_run_vanishes(show, in_ignite):
    for run in "ab":
        EventFile(f"{in_ignite}/gone/{run}").scalar("loss", 1.0, 0)
    board = show({"": f"{in_ignite}/gone"}, protocols=IGFS)
    until_right(lambda: runs(board), lambda found: found == ["a", "b"])
    files, path = fsspec.core.url_to_fs(f"{in_ignite}/gone/a")
    files.rm(path, recursive=True)
    until_right(lambda: runs(board), lambda found: found == ["b"])
