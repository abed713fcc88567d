"""Tests of the files that a run leaves in igfs, and of their removal by `prune`, with real workers."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta

import pytest

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.transaction import Transaction
from ignite_tf_magic.errors import ConfigError, ConnectionLost, ServerError
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.launch.agent.spawning import punch
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.run import local_run
from ignite_tf_magic.runs.handles.run_files import PARTS, RunFiles
from ignite_tf_magic.runs.orders import Order
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import PastGeneration, RunRecord, RunSpec, WorkerRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session import RunRequest, list_runs, open_session

BLOCK = 4096
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
    run.wait(300)
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


def test_variables_of_the_workers_are_those_asked_for(session):
    script = "import os; print(os.environ['RATE'], os.environ['EMPTY'] == '')"
    run = session.start_run(RunRequest("RUN_FILES", script, env={"RATE": "0.1=x", "EMPTY": ""}))
    run.wait(300)
    assert run.directory.log(0).read_text() == "0.1=x True\n"
    for name in ("TF_CONFIG", "IGNITE_TF_RUN_ID", ""):
        with pytest.raises(ConfigError, match=f"--env {name}"):
            session.start_run(RunRequest("RUN_FILES", script, env={name: "1"}))


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
    volume.make_directory(("runs",), exist_ok=True)
    volume.write_file(("was-runs",), b"")
    volume.rename(("runs",), ("old-runs",))
    volume.rename(("was-runs",), ("runs",))  # a file is in the way
    try:
        said: list[str] = []
        session.report = said.append
        run = session.start_run(RunRequest("RUN_FILES", SCRIPT))
        assert run.wait(300).exit_code == 0
        session.wait_for_copies(30)
        assert len(said) == 1 and "is not copied to igfs" in said[0] and "'/runs' is a file" in said[0]
    finally:
        volume.remove_file(("runs",))
        volume.rename(("old-runs",), ("runs",))


@pytest.fixture
def detached(tmp_path, volume):
    """A run on two hosts, whose two workers swapped hosts in the second generation. Yields its directory on db1."""
    name = f"run-files-{time.time_ns()}"
    directory = RunDirectory(tmp_path / "runs" / name)
    directory.path.mkdir(parents=True)
    workers = (WorkerRecord(0, "db2"), WorkerRecord(1, "db1"))
    past = (PastGeneration(1, ("db1", "db2"), "a test", 1.0),)
    order = Order(2)
    RunRecord(name, RunSpec("RUN_FILES", 2), RunState.FAILED, 1.0, workers, order, past=past).write(directory)
    yield directory
    volume.remove_directory(("runs", name), with_contents=True)


def copied(ignite, tmp_path, directory):
    """Copy the files once, as the reconciler of db1 does, and wait until all present files are copied."""
    said = []
    files = RunFiles(local_run(directory, Reach(tmp_path)), ignite.connect_options, said.append, host="db1")
    files.start()
    files.wait(300)
    assert said == []


def test_a_host_of_a_detached_run_copies_the_output_of_its_own_workers_only(
    ignite, tmp_path, volume, detached
):
    for worker in range(2):
        for generation in (1, 2):
            detached.log(worker, generation).write_text(f"{worker} {generation}\n")
    copied(ignite, tmp_path, detached)
    logs = ("runs", detached.run_id, "logs")
    assert {name for page in volume.entries(logs) for name, _ in page} == {"worker-0.log", "worker-1.g2.log"}
    assert content(volume, *logs, "worker-1.g2.log") == "1 2\n"


def test_who_is_started_again_copies_what_is_new(ignite, tmp_path, volume, detached):
    path = ("runs", detached.run_id, "logs", "worker-0.log")
    said = ""
    for number in range(3):
        said += f"line {number}\n"
        detached.log(0).write_text(said)
        copied(ignite, tmp_path, detached)
        assert content(volume, *path) == said


def test_no_byte_of_a_log_is_skipped_where_errors_come_after_a_change_was_made(
    ignite, tmp_path, volume, detached, monkeypatch
):
    """If an append were made twice, the copier would take it for more of the log and skip as many later bytes."""
    calls = itertools.count(1)
    replace, commit = Cache.replace_if_equals, Transaction.commit

    def failing(call, *arguments):
        made = call(*arguments)
        match next(calls) % 3:
            case 1:
                raise ConnectionLost("here", "for this test")
            case 2:
                raise ServerError(1, "for this test", "Failed to update keys (retry update if possible)")
        return made

    monkeypatch.setattr(Cache, "replace_if_equals", lambda *arguments: failing(replace, *arguments))
    monkeypatch.setattr(Transaction, "commit", lambda *arguments: failing(commit, *arguments))
    monkeypatch.setattr("ignite_tf_magic.runs.handles.run_files._MAX_COPY_BYTES", 777)
    said = "".join(f"line {number}\n" for number in range(1000))
    detached.log(0).write_text(said)
    copied(ignite, tmp_path, detached)
    assert content(volume, "runs", detached.run_id, "logs", "worker-0.log") == said
    assert next(calls) > 10


def test_what_was_deleted_before_it_was_copied_leaves_a_line(ignite, tmp_path, volume, detached):
    """The shim frees the head of the log twice, and the copier restarts each time."""
    path, log = ("runs", detached.run_id, "logs", "worker-0.log"), detached.log(0)
    log.write_bytes(b"a" * BLOCK + b"b" * BLOCK + b"c\n")
    expected = ""
    for end, rest in ((BLOCK, "b" * BLOCK + "c\n"), (4 * BLOCK, "d" * (BLOCK - 2) + "\ne")):
        with log.open("r+b") as file:
            punch(file.fileno(), end)
        deleted = end - (2 * BLOCK + 2 if expected else 0)
        expected += (
            f"[ignite_tf_magic: {deleted} bytes of output were deleted here, at the log's size bound]\n"
        )
        expected += rest
        copied(ignite, tmp_path, detached)
        assert content(volume, *path) == expected
        copied(ignite, tmp_path, detached)
        assert content(volume, *path) == expected
        with log.open("ab") as file:
            file.write(b"-" * (2 * BLOCK - 2) + b"d" * (BLOCK - 2) + b"\ne")
