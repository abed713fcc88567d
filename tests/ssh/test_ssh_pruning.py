"""Tests of `prune` for runs on several hosts: it asks all hosts before it removes anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ignite_tf_magic.launch.jobs import Job
from ignite_tf_magic.session import RunRequest, RunState, get_run, open_session
from tests.waiting import until

OWNER = """
import sys, time
from ignite_tf_magic.session import RunRequest, open_session
session = open_session(report=print)
run = session.start_run(RunRequest("NUMBERS", sys.argv[1], 3, start_timeout_s=None))
print("run", run.id, flush=True)
time.sleep(600)
"""
WAIT = "import time\nprint('at work', flush=True)\ntime.sleep(600)\n"


def has_files_on(run) -> set[str]:
    """Return the names of the hosts that have a directory of the run."""
    with run.reach.visiting(run.hosts()) as hosts:
        return {host.name for host in hosts if host.jobs_of(run.id) is not None}


@contextmanager
def something_alive(run, name: str) -> Iterator[None]:
    """Start a job of a run on one of its hosts that no record mentions."""
    record = next(host for host in run.hosts() if host.name == name)
    with run.reach.open(record) as host:
        host.start(
            Job(
                run.id,
                "left-over",
                generation=run.record().generation,
                argv=("sleep", "600"),
                env={},
                log="x.log",
            )
        )
        try:
            yield
        finally:
            host.end(run.id, grace_s=0)
            until(lambda: all(job.has_ended for job in host.jobs_of(run.id)))


@contextmanager
def unreachable(host) -> Iterator[None]:
    host.kill_sshd()
    try:
        yield
    finally:
        host.start_sshd()


@pytest.fixture
def prune(home):
    """Prune all runs over new connections; return the removed ids and the messages."""

    def prune() -> tuple[set[str], str]:
        said: list[str] = []
        with open_session(report=said.append) as session:
            return {each.run_id for each in session.prune(keep=0)}, "\n".join(said)

    return prune


@pytest.mark.nightly
def test_of_an_ended_run_nothing_goes_while_something_lives_on_one_host(session, bed, prune):
    """Nightly. Shorter: test_of_a_lost_run_nothing_goes_before_all_its_hosts_have_told"""
    _, second, third = bed.hosts
    run = session.start_run(RunRequest("NUMBERS", "print('done')", 3, start_timeout_s=None, detach=True))
    until(lambda: run.info().state is RunState.SUCCEEDED)
    with something_alive(run, third.name):
        removed, told = prune()
        assert run.id not in removed
        assert f"run {run.id} stays" in told and f"left-over of the run still lives on {third.name}" in told
        assert has_files_on(run) == {host.name for host in bed.hosts}
        with unreachable(second):
            removed, told = prune()
            assert run.id not in removed
            assert f"left-over of the run still lives on {third.name}" in told
        assert has_files_on(run) == {host.name for host in bed.hosts}
    with unreachable(second):
        removed, told = prune()
    assert run.id in removed
    assert f"files of run {run.id} stay on {second.name}" in told


def test_of_a_lost_run_nothing_goes_before_all_its_hosts_have_told(session, bed, prune, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_TIMINGS_DIVISOR", "4")
    _, second, third = bed.hosts
    words = [sys.executable, "-c", OWNER, WAIT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as owner:
        run = get_run(next(line.split()[1] for line in owner.stdout if line.startswith("run ")))
        until(lambda: run.info().state is RunState.RUNNING)
        owner.kill()
    until(lambda: run.info().state is RunState.LOST)
    until(lambda: not living_on(run))  # until their leases have expired
    with unreachable(second):
        removed, told = prune()
        assert run.id not in removed
        assert f"{second.name} cannot be asked whether the run still lives there" in told
    assert has_files_on(run) == {host.name for host in bed.hosts}
    with something_alive(run, third.name):
        removed, told = prune()
        assert run.id not in removed
        assert f"left-over of the run still lives on {third.name}" in told
        assert has_files_on(run) == {host.name for host in bed.hosts}
    removed, told = prune()
    assert run.id in removed, told
    assert not run.directory.path.exists()


def living_on(run) -> list[str]:
    with run.reach.visiting(run.hosts()) as hosts:
        return [host.name for host in hosts if not all(job.has_ended for job in host.jobs_of(run.id))]
