"""Tests of the facade, with real nodes and real workers that read their own partitions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from ignite_tf_magic import session as session_package
from ignite_tf_magic.errors import CacheNotFound, LaunchError, PlacementError, RunNotFound, ScriptError
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.ops import CacheMode
from ignite_tf_magic.runs.supervision.reconciler_instructions import INSTRUCTIONS, Instructions
from ignite_tf_magic.session import (
    Plan,
    RunRequest,
    RunState,
    TrainingRecord,
    get_run,
    list_runs,
    open_session,
    stop_run,
)
from ignite_tf_magic.settings.options import Endpoint
from tests.waiting import until

# Reads the data named by the environment with the client alone, without importing TensorFlow.
READ = """
import json, os
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

env = os.environ
endpoint = Endpoint(env["IGNITE_DATASET_HOST"], int(env["IGNITE_DATASET_PORT"]))
ranges = [part.split("-") for part in env["IGNITE_DATASET_PART"].split(",")]
partitions = [p for part in ranges for p in range(int(part[0]), int(part[-1]) + 1)]
with connect(ConnectOptions((endpoint,))) as client:
    stats = client.cache(env["IGNITE_DATASET_ASSIGNED_CACHE"]).partition_stats(partitions)
told = json.load(open(env["IGNITE_DATASET_ASSIGNMENT_FILE"]))
print(json.dumps({
    "partitions": partitions,
    "rows": sum(each.rows for each in stats.values()),
    "told": told,
    "as_told": told["rows_by_worker"][told["worker"]] == sum(each.rows for each in stats.values()),
    "endpoint": str(endpoint),
}))
"""


# In its first life, waits to be killed.
FALL_ONCE = """
import os, time
told = os.path.join({home!r}, "pid")
if not os.path.exists(told):
    with open(told + ".new", "w") as file: file.write(str(os.getpid()))
    os.rename(told + ".new", told)
    time.sleep(600)
print("again")
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    return tmp_path


@pytest.fixture
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened


@pytest.fixture
def numbers(client):
    """A cache of 300 rows."""
    cache = client.get_or_create_cache(CacheConfig(name="SESSION_NUMBERS", backups=1))
    for key in range(300):
        cache.put(key, key)
    yield cache
    client.destroy_cache("SESSION_NUMBERS")


def outputs(run):
    text = dict.fromkeys(range(run.info().num_workers), "")
    for chunk in run.follow():
        text[chunk.worker] += chunk.text
    assert run.info().state is RunState.SUCCEEDED, text
    return [json.loads(text[worker]) for worker in sorted(text)]


@pytest.mark.smoke
def test_workers_read_every_row_once_between_them(session, numbers, ignite):
    script = READ
    found = outputs(session.start_run(RunRequest("SESSION_NUMBERS", script, num_workers=3)))
    partitions = [partition for each in found for partition in each["partitions"]]
    assert sorted(partitions) == sorted(set(partitions))
    assert len(partitions) == numbers.partition_map().num_partitions
    rows = [each["rows"] for each in found]
    assert sum(rows) == 300
    assert max(rows) <= 1.05 * 100 + 10
    assert all(each["told"]["rows_by_worker"] == rows and each["as_told"] for each in found)
    known = {str(endpoint) for endpoint in ignite.connect_options.endpoints}
    assert len({each["endpoint"] for each in found} & known) == 3


def test_one_worker_reads_all(session, numbers):
    (found,) = outputs(session.start_run(RunRequest("SESSION_NUMBERS", READ)))
    assert found["rows"] == 300
    assert found["told"]["cache"] == "SESSION_NUMBERS"


def test_a_replicated_cache_is_read_whole_by_one_worker(session, client):
    client.get_or_create_cache(CacheConfig(name="SESSION_COPIES", mode=CacheMode.REPLICATED))
    try:
        client.cache("SESSION_COPIES").put(1, 1)
        script = "import json, os; print(json.dumps(os.environ.get('IGNITE_DATASET_PART')))"
        assert outputs(session.start_run(RunRequest("SESSION_COPIES", script))) == [None]
        with pytest.raises(PlacementError, match="replicated"):
            session.start_run(RunRequest("SESSION_COPIES", script, num_workers=2))
    finally:
        client.destroy_cache("SESSION_COPIES")


def test_an_empty_cache_has_work_for_one_worker(session, client):
    client.get_or_create_cache(CacheConfig(name="SESSION_EMPTY"))
    try:
        (found,) = outputs(session.start_run(RunRequest("SESSION_EMPTY", READ)))
        assert found["rows"] == 0
        with pytest.raises(PlacementError, match="only 0 partitions"):
            session.start_run(RunRequest("SESSION_EMPTY", READ, num_workers=2))
    finally:
        client.destroy_cache("SESSION_EMPTY")


def test_a_cache_that_does_not_exist_starts_nothing(session, numbers):
    with pytest.raises(CacheNotFound, match="SESSION_NUMBERS"):
        session.start_run(RunRequest("SESSION_NUMBRES", "pass"))
    assert list(list_runs(include_ended=True)) == []


@pytest.mark.parametrize("goes", ["before it is looked at", "while it is looked at"])
def test_a_cache_that_is_destroyed_while_all_are_listed_is_left_out(
    session, numbers, client, monkeypatch, goes
):
    client.create_cache(CacheConfig("SESSION_GOES"))
    find = session.client.cache

    def find_then_destroy(name: str):
        if name != "SESSION_GOES":
            return find(name)
        found = find(name) if goes == "while it is looked at" else None
        client.destroy_cache(name)
        return found or find(name)

    monkeypatch.setattr(session.client, "cache", find_then_destroy)
    names = [cache.name for cache in session.caches()]
    assert numbers.name in names and "SESSION_GOES" not in names


def test_a_syntax_error_is_seen_before_the_cache_is_counted(session):
    with pytest.raises(ScriptError):
        session.start_run(RunRequest("no cache is asked for", "for"))


def test_another_interpreter(session, numbers, tmp_path):
    script = "import json, sys; print(json.dumps(sys.executable))"
    python = tmp_path / "my python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    run = session.start_run(RunRequest("SESSION_NUMBERS", script, python=str(python)))
    assert len(outputs(run)) == 1
    with pytest.raises(LaunchError, match="no-such-python"):
        session.start_run(RunRequest("SESSION_NUMBERS", script, python="no-such-python"))


def test_runs_are_listed_found_and_stopped_without_a_session(session, numbers):
    run = session.start_run(RunRequest("SESSION_NUMBERS", "import time; time.sleep(60)", name="sleeper"))
    session.close()
    assert [info.id for info in list_runs()] == [run.id]
    assert get_run("sleeper").id == run.id
    assert stop_run("sleeper").info.state is RunState.STOPPED
    assert list(list_runs()) == []
    assert [info.state for info in list_runs(include_ended=True)] == [RunState.STOPPED]
    with pytest.raises(RunNotFound):
        stop_run("other")


def test_the_configured_cluster_is_used_when_none_is_given(ignite, monkeypatch):
    endpoints = ignite.connect_options.endpoints
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, endpoints)))
    with open_session(report=pytest.fail) as session:
        assert session.options.endpoints == endpoints
        assert len(session.client.nodes()) == len(endpoints)


def test_a_second_process_sees_the_runs(session, numbers, home):
    run = session.start_run(RunRequest("SESSION_NUMBERS", "import time; time.sleep(60)"))
    code = (
        "import sys; from ignite_tf_magic.session import list_runs, stop_run\n"
        "(info,) = list_runs(); print(info.id, info.state.value, stop_run(info.id).info.state.value)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [run.id, "running", "stopped"]


def fall_once(session, home):
    """Start a detached run and kill its worker; return the final state and the output."""
    run = session.start_run(RunRequest("SESSION_NUMBERS", FALL_ONCE.format(home=str(home)), detach=True))
    try:
        until((home / "pid").exists, what="the worker's number")
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        info = run.wait(300)
        return info, "".join(chunk.text for chunk in run.follow()) if info.state.has_ended else run.record()
    finally:
        run.stop()


def test_a_detached_run_on_this_machine_is_started_again(ignite, numbers, home, monkeypatch):
    """The run was started through an address that no node lists, and restarts anyway."""
    monkeypatch.setenv("IGNITE_TF_TIMINGS_DIVISOR", "4")
    listed = ignite.connect_options.endpoints
    dialled = tuple(Endpoint("localhost", each.port) for each in listed)
    with open_session(replace(ignite.connect_options, endpoints=dialled), report=print) as session:
        info, told = fall_once(session, home)
    assert (info.state, info.restarts) == (RunState.SUCCEEDED, 1), told
    assert told.endswith("again\n")
    instructions = Instructions.read(info.directory / INSTRUCTIONS)
    assert instructions.endpoints[: len(dialled)] == tuple(map(str, dialled))
    assert sorted(instructions.endpoints[len(dialled) :]) == sorted(map(str, listed))


def test_a_detached_run_starts_again_here_when_no_host_with_a_node_can_be_used(
    ignite, numbers, client, home, monkeypatch
):
    """The run's nodes are on a host that SSH cannot reach."""
    monkeypatch.setenv("IGNITE_TF_TIMINGS_DIVISOR", "4")
    (home / "ssh_config").write_text("Host far\n  HostName 127.0.0.1\n  Port 1\n")
    ids = json.dumps([str(node.node_id) for node in client.nodes()])
    config = home / "ignite-tf.toml"
    config.write_text(f'[ssh]\nconfig = "ssh_config"\n[hosts.far]\nnode_ids = {ids}\nssh = "far"\n')
    with open_session(ignite.connect_options, report=print, config=config) as session:
        info, told = fall_once(session, home)
    assert (info.state, info.restarts, info.hosts) == (RunState.SUCCEEDED, 1, ("localhost",)), told


def test_importing_the_session_loads_no_heavy_library():
    code = "import sys, ignite_tf_magic.session; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"tensorflow", "pyignite", "asyncssh", "IPython", "ipywidgets", "pandas", "pyarrow", "matplotlib"}
    assert heavy & set(answer.stdout.split()) == set()


def test_former_names_stand_for_those_of_today():
    assert (session_package.Planned, session_package.Record) == (Plan, TrainingRecord)
    assert {"Planned", "Record"} <= set(session_package.__all__)
