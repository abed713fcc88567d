"""Tests of runs seen from another machine of their user: listed, watched and stopped, also while Ignite is down."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager

import pytest

from ignite_tf_magic.session import RunRequest, RunState
from tests.ssh.ssh_user import COUNT, by_worker, check_lines, check_lines_so_far, load_numbers
from tests.waiting import until

FIELDS = {"id", "state", "exit_code", "cache", "hosts", "restarts", "started_at"}


def counting(session, **options):
    return session.start_run(RunRequest("NUMBERS", COUNT, 3, start_timeout_s=None, **options))


@pytest.mark.nightly
def test_a_detached_run(session, elsewhere):
    """Nightly. Shorter: tests/ssh/test_ssh_shell.py::test_ctrl_c_detaches"""
    run = counting(session, detach=True)
    session.close()

    (listed,) = elsewhere.json("ps")
    assert listed.keys() >= FIELDS
    assert {key: listed[key] for key in ("id", "exit_code", "cache", "hosts", "restarts")} == {
        "id": run.id,
        "exit_code": None,
        "cache": "NUMBERS",
        "hosts": ["bed1", "bed2", "bed3"],
        "restarts": 0,
    }
    assert listed["state"] in ("starting", "running")

    with elsewhere.start("attach", run.id) as interrupted:
        interrupted.until("line 20\n")
        interrupted.interrupt()
        assert interrupted.end() == 130
    assert f"run {run.id} goes on" in interrupted.err

    described = elsewhere.json("describe", run.id)
    assert [worker["host"] for worker in described["workers"]] == ["bed1", "bed2", "bed3"]
    assert described["owner"]["supervisor"] in ("bed1", "bed2", "bed3")
    assert re.search(r"^worker 1 +bed2 ", elsewhere("describe", run.id).out, re.M)
    assert elsewhere("describe", run.id, "--script").out == COUNT
    assert check_lines_so_far(elsewhere("logs", run.id, "--worker", "1").out) > 20

    with elsewhere.start("attach", run.id[:-1]) as watching:
        watching.until("line 40\n")
        stopped = elsewhere.json("stop", run.id)
        assert watching.end() == stopped["exit_code"] != 0
    assert (stopped["state"], stopped["outcome"]) == ("stopped", "stopped")
    shown = by_worker(watching.out)
    assert sorted(shown) == [0, 1, 2]
    for worker, output in shown.items():
        check_lines(output)
        assert elsewhere("logs", run.id, "--worker", str(worker)).out == output
    assert elsewhere.json("ps") == []
    ended = elsewhere.json("ps", "--all")
    assert ended[-1]["id"] == run.id
    assert [each["started_at"] for each in ended] == sorted(each["started_at"] for each in ended)
    assert run.info().state is RunState.STOPPED
    assert "no run" in elsewhere("stop", "nobody", code=1).err


def test_a_run_of_a_notebook(session, elsewhere):
    """This process owns the run. The other machine sees it through the registry and its hosts."""
    run = counting(session)
    listed = until(lambda: elsewhere.json("ps"), what="the run to be listed")
    assert [each["id"] for each in listed] == [run.id]
    with elsewhere.start("attach", run.id) as watching:
        watching.until("line 20\n")
        assert elsewhere.json("stop", run.id)["outcome"] == "stopped"
        watching.end()
    for output in by_worker(watching.out).values():
        check_lines(output)
    assert run.wait(timeout_s=300).state is RunState.STOPPED
    own = {0: "", 1: "", 2: ""}
    for chunk in run.follow():
        own[chunk.worker] += chunk.text
    assert own == by_worker(watching.out)


def test_prune_forgets_runs_wherever_something_of_them_is(session, elsewhere, bed):
    run = session.start_run(RunRequest("NUMBERS", "print('here')", 3, start_timeout_s=None))
    run.wait(300)
    session.wait_for_copies(30)
    homes = [host.disk / host.state / "runs" / run.id for host in bed.hosts]
    assert all(home.is_dir() for home in homes)
    assert run.id in [each["id"] for each in elsewhere.json("ps", "--all")]
    pruned = elsewhere.json("prune", "--keep", "0")
    assert run.id in [each["id"] for each in pruned]
    assert not any(home.exists() for home in homes)
    assert elsewhere.json("ps", "--all") == []
    # its own machine still has its files
    assert [each.id for each in session.runs(include_ended=True)] == [run.id]
    session.prune(keep=0)
    assert session.runs(include_ended=True) == []


@pytest.mark.nightly
def test_a_row_of_the_registry_names_no_program_for_another_machine(session, elsewhere, bed):
    """A machine without the run's key uses only the host names of its row, because anyone may have written the row.

    Nightly. Shorter:
    tests/runs/supervision/test_hostile_registry.py::test_of_a_record_that_anybody_may_have_written_only_the_hosts_names_are_taken
    """
    run = session.start_run(RunRequest("NUMBERS", "print('here')", 3, start_timeout_s=None, detach=True))
    run.wait(300)
    for host in bed.hosts:
        host.run(
            [
                "sh",
                "-c",
                "printf '#!/bin/sh\\ntouch $HOME/somebody-ran-it\\n' > $HOME/evil; chmod 755 $HOME/evil",
            ]
        )
    cache, key = session.client.cache("ignite-tf-runs"), f"record/{run.id}"
    until(lambda: json.loads(cache.get(key))["record"]["state"] == "succeeded", what=lambda: cache.get(key))
    row = json.loads(cache.get(key))
    row["record"] |= {"state": "running", "version": row["record"]["version"] + 1000}
    for host in row["record"]["hosts"]:
        host |= {"agent_python": "~/evil", "python": "~/evil", "root": "/tmp/nobodys"}
    cache.put(key, json.dumps(row))
    assert elsewhere.json("ps")[0]["id"] == run.id
    assert elsewhere("logs", run.id, "--worker", "0").out == "here\n"
    elsewhere("stop", run.id)
    for host in bed.hosts:
        found = host.run(["sh", "-c", "ls $HOME /tmp"]).stdout.split()
        assert "evil" in found
        assert {"somebody-ran-it", "nobodys"}.isdisjoint(found)


@pytest.mark.faults
@pytest.mark.nightly
def test_while_ignite_is_down(session, elsewhere, bed):
    """Nightly. Shorter: tests/session/test_run_index.py::test_hosts_of_another_cluster_are_not_asked"""
    run = counting(session, detach=True)
    session.close()
    with elsewhere.start("attach", run.id) as watching:
        watching.until("line 40\n")
        with no_node_answers(bed):
            listed = elsewhere("ps", "--json")
            # If an earlier test's run ended and only the registry knows it, its hosts still list it.
            assert {each["id"]: each["state"] for each in json.loads(listed.out)}[run.id] == "running"
            assert "no Ignite node answers; the hosts were asked instead" in listed.err
            assert check_lines_so_far(elsewhere("logs", run.id, "--worker", "0").out) > 40
            checks = elsewhere.json("doctor", "NUMBERS", code=1)["checks"]
            found = {(each["host"], each["check"]): each for each in checks}
            assert found[None, "ignite"]["found"].startswith("no node answers: ")
            for host in bed.hosts:
                assert found[host.name, "ssh"]["status"] == found[host.name, "network"]["status"] == "ok"
                assert found[host.name, "ignite"]["found"].startswith(f"no Ignite node at {host.endpoint}: ")
                assert "start the Ignite node" in found[host.name, "ignite"]["fix"]
            with elsewhere.start("attach", run.id) as second:
                second.until("line 40\n")
            assert elsewhere.json("stop", run.id)["id"] == run.id
        watching.end()
    for worker, output in by_worker(watching.out).items():
        check_lines(output)
        assert elsewhere("logs", run.id, "--worker", str(worker)).out == output
    # A host that was away must still record how the run ended.
    until(lambda: elsewhere.json("ps") == [], what=lambda: elsewhere.json("ps"))


@contextmanager
def no_node_answers(bed):
    """Kill all nodes; afterwards restart them and reload the data."""
    try:
        for host in bed.hosts:
            host.kill_node()
        yield
    finally:
        for host in bed.hosts:
            host.start_node(wait=False)
        for host in bed.hosts:
            host.await_node(len(bed.hosts))
        load_numbers(bed)
