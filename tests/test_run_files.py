"""What a run leaves in igfs, and what `prune` removes again, with real workers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.run_files import PARTS
from ignite_tf_magic.session import RunRequest, list_runs, open_session

SCRIPT = """
import os, sys, time
print("uri", os.environ["IGNITE_TF_RUN_URI"], flush=True)
for number in range(3):
    print("line", number, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)


@pytest.fixture
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        cache = opened.client.get_or_create_cache(CacheConfig("RUN_FILES"))
        cache.put_all({key: key for key in range(100)})
        yield opened
        opened.client.destroy_cache("RUN_FILES")


@pytest.fixture
def volume(ignite):
    with Volume(lambda: ignite.connect_options) as opened:
        yield opened


def content(volume, *path):
    with volume.open_read(path) as reader:
        data = bytearray(reader.node.size)
        reader.read_into(0, memoryview(data))
        return data.decode()


def started(session):
    run = session.start_run(RunRequest("RUN_FILES", SCRIPT))
    run.wait(60)
    session.wait_for_copies(30)
    return run


def test_a_run_has_directories_and_its_output_in_igfs(session, volume):
    run = started(session)
    base = ("runs", run.id)
    names = {name for page in volume.entries(base) for name, _ in page}
    assert names == {*PARTS, "run.json"}
    told = content(volume, *base, "logs", "worker-0.log")
    assert told == run.directory.log(0).read_text()
    assert f"uri igfs:///runs/{run.id}" in told and "line 2" in told
    assert f'"{run.id}"' in content(volume, *base, "run.json")


def test_prune_keeps_the_newest_and_those_that_go_on(session, volume):
    ids = [started(session).id for _ in range(3)]
    going_on = session.start_run(RunRequest("RUN_FILES", "import time; time.sleep(60)"))
    try:
        assert session.prune(keep=1, older_than=timedelta(days=1)) == []
        listed = [run.run_id for run in session.prune(keep=1, dry_run=True)]
        assert listed[-2:] == ids[:2]
        assert {run.id for run in list_runs(include_ended=True)} == {*ids, going_on.id}
        pruned = session.prune(keep=1)
        assert [run.run_id for run in pruned] == listed
        assert all(run.num_bytes > 0 for run in pruned[-2:])
        assert {run.id for run in list_runs(include_ended=True)} == {ids[2], going_on.id}
        left = {name for page in volume.entries(("runs",)) for name, _ in page}
        assert ids[2] in left and not left & set(ids[:2])
    finally:
        going_on.stop()
        session.wait_for_copies(30)


def test_a_run_goes_on_where_igfs_cannot_be_written(session, volume):
    volume.write_file(("was-runs",), b"")
    volume.rename(("runs",), ("old-runs",))
    volume.rename(("was-runs",), ("runs",))  # a file is in the way
    try:
        said: list[str] = []
        session.report = said.append
        run = session.start_run(RunRequest("RUN_FILES", SCRIPT))
        assert run.wait(60).exit_code == 0
        session.wait_for_copies(30)
        assert len(said) == 1 and "is not copied to igfs" in said[0] and "'/runs' is a file" in said[0]
    finally:
        volume.remove_file(("runs",))
        volume.rename(("old-runs",), ("runs",))
