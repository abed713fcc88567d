"""Tests that a client with access to an Ignite port, who can write registry rows, cannot make hosts run a program."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from ignite_tf_magic.client.cache_facts import read_facts
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.client.row_counts import last_count, note_count
from ignite_tf_magic.errors import HostUnreachable, IgniteTfError
from ignite_tf_magic.launch.ssh import SshOptions
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.registry.registry import CACHE, Registry
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.session import RunRequest, RunState, list_runs, open_session
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_runs_left")
NUMBERS = "HOSTILE_NUMBERS"
SLEEP = "import time; print('begun', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    return tmp_path / "home"


@pytest.fixture
def session(ignite):
    with open_session(ignite.connect_options, report=print) as session:
        session.load(NUMBERS, {"x": np.arange(30)}, replace=True)
        yield session


@pytest.fixture
def run(session):
    """A detached run whose only worker is running."""
    run = session.start_run(RunRequest(NUMBERS, SLEEP, detach=True))
    try:
        until(lambda: run.info().state is RunState.RUNNING)
        yield run
    finally:
        run.stop()


@pytest.fixture
def evil_program(tmp_path):
    """A program, and the file that it creates when it is run."""
    trace = tmp_path / "somebody-ran-it"
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    return program, trace


@pytest.fixture
def stranger(ignite):
    """The registry's cache, as any client can write it: without key, files or account of the user."""
    with connect(ignite.connect_options) as client:
        registry = Registry(client)
        registry.report("nobody", "db1", {})  # create the cache, independent of the order of tests
        registry.remove("nobody")
        yield Cache(client, CACHE)


def alter(cache, run_id, **changes):
    """Overwrite a run's record with changed values and a higher version."""
    row = json.loads(cache.get(f"record/{run_id}"))
    record = row["record"]
    for path, value in changes.items():
        *way, last = path.split("__")
        place = record
        for step in way:
            place = place[step]
        place[last] = value
    record["version"] += 1000
    cache.put(f"record/{run_id}", json.dumps(row))
    return record


def words_of(run):
    """Return the log of the run's reconciler on this machine."""
    return (run.directory.path / "reconciler.log").read_text()


def next_generation(record):
    return {**record["order"], "generation": record["order"]["generation"] + 1}


def record_in(cache, run_id):
    return json.loads(cache.get(f"record/{run_id}"))["record"]


def test_a_row_that_orders_another_program_is_refused_and_put_back(run, stranger, evil_program):
    program, trace = evil_program
    before = record_in(stranger, run.id)
    alter(
        stranger,
        run.id,
        spec__python=str(program),
        order=next_generation(before),
        state="starting",
        supervisor="nobody",
    )
    until(lambda: trace.exists() or record_in(stranger, run.id)["spec"]["python"] is None)
    assert not trace.exists()
    told = words_of(run)
    assert "was not written by this run's hosts" in told
    assert f"spec.python is '{program}' instead of None" in told
    assert record_in(stranger, run.id)["version"] >= before["version"]
    assert run.info().state is RunState.RUNNING
    assert run.stop().info.state is RunState.STOPPED


def test_a_row_of_another_cluster_gets_no_credentials(run, stranger):
    """The supervisor sends the cluster's password to the nodes of a record, so forged nodes must not receive it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        alter(stranger, run.id, topology=[f"127.0.0.1:{port}"], supervisor="nobody")

        arrivals = []

        def came():
            with suppress(BlockingIOError):
                listener.accept()[0].close()
                arrivals.append("somebody")
            return arrivals != []

        until(lambda: came() or f"127.0.0.1:{port}" not in record_in(stranger, run.id)["topology"])
        assert not came()
        assert f"topology is ['127.0.0.1:{port}'] instead of" in words_of(run)


def test_a_row_with_the_seal_of_another_run_is_refused(session, run, stranger, evil_program):
    program, trace = evil_program
    other = session.start_run(RunRequest(NUMBERS, SLEEP, detach=True))
    try:
        row = json.loads(stranger.get(f"record/{other.id}"))
        row["record"] |= {"run_id": run.id, "version": row["record"]["version"] + 1000}
        row["record"]["spec"]["python"] = str(program)
        row["record"]["order"] = next_generation(row["record"])
        row["record"]["supervisor"] = "nobody"
        stranger.put(f"record/{run.id}", json.dumps(row))
        until(lambda: trace.exists() or record_in(stranger, run.id)["spec"]["python"] is None)
        assert not trace.exists()
    finally:
        other.stop()


def test_what_others_write_in_the_name_of_a_host_counts_for_nothing(client, stranger):
    """For example, a forged report that all workers ended would make the supervisor start others beside them."""
    sealed = Registry(client, seal=Seal.new())
    sealed.report("reported", "db1", {"counter": 7, "ports": {0: 1, 10: 2, 9: 3}})
    own = {"db1": {"counter": 7, "ports": {"0": 1, "10": 2, "9": 3}}}
    assert sealed.reports("reported") == own
    row = stranger.get("host/reported/db1")
    for forged in (
        {"counter": 8, "living": []},
        {**json.loads(row), "counter": 8},
        {**json.loads(row), "seal": 1},
        {**json.loads(row), "seal": "ü"},
    ):
        stranger.put("host/reported/db1", json.dumps(forged))
        assert sealed.reports("reported") == {}
    stranger.put("host/reported/db2", row)  # one host's report is not valid for another host
    stranger.put("host/reported/db1", row)
    stranger.put("hosts/reported", json.dumps({"names": ["db1", "db2"]}))
    assert sealed.reports("reported") == own
    sealed.remove("reported")


def test_who_has_started_a_run_goes_by_the_record_that_is_here(run, stranger, ignite, monkeypatch):
    """The run has ended, so no process restores the forged row."""
    monkeypatch.setenv("IGNITE_TF_CLUSTER", str(ignite.connect_options.endpoints[0]))
    run.stop()
    until(lambda: record_in(stranger, run.id)["state"] == "stopped")
    alter(stranger, run.id, state="running", spec__cache="OTHER", hosts=[])
    listed = list_runs(include_ended=True)
    (info,) = [each for each in listed if each.id == run.id]
    assert (info.state, info.cache) == (RunState.STOPPED, NUMBERS)
    (warning,) = [each for each in listed.warnings if run.id in each]
    assert "was not written by this run's hosts" in warning


def test_whom_a_note_of_a_cache_names_is_not_told_the_password(ignite, client, session):
    """Planning contacts the nodes of an earlier count. Any client can write such a note."""
    before = last_count(read_facts(client, NUMBERS))
    with socket.create_server(("0.0.0.0", 0)) as listener:
        evil = f"{socket.gethostname()}:{listener.getsockname()[1]}"
        nodes = before.nodes | {uuid.uuid4()}
        note_count(client, NUMBERS, replace(before, nodes=nodes, endpoints=(*before.endpoints, evil)))
        told = bytearray()
        answering = threading.Thread(target=listen_once, args=(listener, told))
        answering.start()
        known = replace(ignite.connect_options, username="reader", password="pa55-w0rd")
        with open_session(known, report=print) as mine, suppress(IgniteTfError):
            planned = mine.plan_run(RunRequest(NUMBERS, "pass"))
            assert evil not in planned.topology
        answering.join()
    note_count(client, NUMBERS, before)
    assert told, "nobody asked there"
    assert b"pa55-w0rd" not in told


def listen_once(listener, told):
    listener.settimeout(20)
    with suppress(OSError), listener.accept()[0] as stream:
        stream.settimeout(5)
        told += stream.recv(4096)


@pytest.mark.parametrize("run_id", ["..", ".", "../../x"])
def test_the_id_of_a_run_leads_nowhere(client, stranger, ignite, monkeypatch, run_id):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", str(ignite.connect_options.endpoints[0]))
    stranger.put("index", json.dumps({"names": [run_id]}))
    stranger.put(f"record/{run_id}", json.dumps({"record": {"run_id": run_id, "version": 1}}))
    listed = list_runs(include_ended=True)
    assert list(listed) == []
    assert f"{run_id!r} in cache {CACHE} cannot be the id of a run" in listed.warnings
    stranger.remove_all(["index", f"record/{run_id}"])


def test_of_a_record_that_anybody_may_have_written_only_the_hosts_names_are_taken(tmp_path):
    forged = HostRecord(
        "db1", ssh="db1", root="/tmp/evil", agent_python="/tmp/evil/python", environment="/tmp/evil"
    )
    record = RunRecord("r", RunSpec("C"), RunState.RUNNING, 1.0, hosts=(forged,), owner_host="elsewhere")
    reach = Reach(tmp_path, roots={"db1": "/srv/mine"})
    assert reach.seen_from_here(record, is_verified=True) == (forged,)
    assert reach.seen_from_here(record, is_verified=False) == (
        HostRecord("db1", ssh="db1", root="/srv/mine"),
    )


@pytest.mark.parametrize(
    "name", ["db1;touch x", "$(touch x)", "`touch x`", "-oProxyCommand=x", "a b", "a\nb", "a|b"]
)
def test_a_name_for_ssh_is_no_program(name, tmp_path):
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  ProxyCommand echo %h\n")
    with pytest.raises(HostUnreachable, match="is not a valid host name"):
        Reach(tmp_path, SshOptions(config_file=str(config))).open(HostRecord("db1", ssh=name)).hello()


def test_a_row_as_deep_as_python_goes_has_no_seal_that_fits():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    assert not Seal.new().fits("record/x", {"run_id": "x", "deep": deep}, "0" * 64)
    assert not Seal.new().fits("record/x", {"run_id": "x"}, "\ud800")


@pytest.mark.parametrize("text", ["", "00", "no key"])
def test_a_key_that_was_cut_off_is_none(tmp_path, text):
    directory = RunDirectory(tmp_path)
    directory.seal_key.write_text(text)
    assert Seal.read(directory) is None


def test_half_a_character_among_the_names_of_hosts_is_passed_over(ignite, stranger):
    with connect(ignite.connect_options) as client, Registry(client) as registry:
        registry.report("halved", "db1", {"x": 1})
        stranger.put("hosts/halved", '{"names": ["\\ud800", "db1"]}')
        assert registry.reports("halved") == {"db1": {"x": 1}}
        registry.remove("halved")
