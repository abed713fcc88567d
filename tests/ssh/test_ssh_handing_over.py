"""Tests of hosts that are lost while a run is handed over to them, or just after."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.errors import ConnectionFailed, DeadlineExceeded, IgniteTfError, LaunchError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.session import RunRequest, RunState, get_run, list_runs, open_session, submission
from tests.ssh.ssh_user import late_reconciler, load_numbers, settings
from tests.waiting import until


def test_no_host_begins_before_all_have_what_they_need(session, bed, monkeypatch):
    """Otherwise the first host would wait for one that still receives files, and treat it as lost."""
    write, start, written, started = Host.write, submission._start, [], []

    def write_slowly(host, *arguments) -> None:
        if host.name == bed.hosts[2].name:
            time.sleep(0.3)
        write(host, *arguments)
        written.append(time.monotonic())

    def start_and_note(jobs, host) -> None:
        started.append(time.monotonic())
        start(jobs, host)

    monkeypatch.setattr(Host, "write", write_slowly)
    monkeypatch.setattr(submission, "_start", start_and_note)
    run = session.start_run(RunRequest("NUMBERS", "print('here')", 3, detach=True))
    assert max(written) < min(started)
    assert len(started) == 3
    assert run.wait(60).state is RunState.SUCCEEDED


@pytest.mark.nightly
def test_a_run_that_is_given_to_a_host_over_a_slow_link_is_not_listed_as_lost(
    session, bed, registry, monkeypatch
):
    """The process that starts the run answers for it until a host does, even beyond one owner lapse.

    Nightly. No shorter one: it waits for longer than a sign of life counts.
    """
    write, owners = Host.write, []

    def write_slowly(host, run, path, *arguments) -> None:
        if path == "run.json" and host.name == bed.hosts[2].name:
            time.sleep(Timeouts().owner_lapse_s + 2.0)
            owners.append(registry.owner(run))
        write(host, run, path, *arguments)

    monkeypatch.setattr(Host, "write", write_slowly)
    run = session.start_run(RunRequest("NUMBERS", "print('here')", 3, max_restarts=0, detach=True))
    assert len(owners) == 1
    assert owners[0] is not None
    assert run.wait(60).state is RunState.SUCCEEDED


@pytest.mark.nightly
def test_a_host_whose_interpreter_begins_late_is_waited_for(home, bed):
    """For example a host whose Python is on a network disk. The others do not treat it as lost, and say that they
    wait.

    Nightly. Shorter:
    tests/runs/registry/test_registry_host_pool.py::test_a_host_that_was_never_heard_is_silent_since_somebody_listens
    """
    host = bed.hosts[2]
    with late_reconciler(host, seconds=16) as python:
        Path("ignite-tf.toml").write_text(settings(bed, **{host.name: {"python": python}}))
        with open_session(report=print) as opened:
            run = opened.start_run(RunRequest("NUMBERS", "print('here')", 3, max_restarts=0, detach=True))
            until(lambda: f"{host.name}: out of reach" in (run.info().waiting_for or ""), 30)
            info = run.wait(120)
    assert (info.state, info.restarts) == (RunState.SUCCEEDED, 0), info.reason


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.nightly
def test_a_host_that_is_lost_while_it_is_given_a_run(session, bed, namespaces, monkeypatch, comes_back):
    """If the host returns within seconds, its files are removed. Otherwise the error says so and the run is listed.

    Nightly. Shorter: tests/ssh/test_ssh_disks.py::test_a_start_on_a_full_host_is_refused_and_leaves_nothing
    """
    victim, start = bed.hosts[1], submission._start

    def start_and_lose(jobs, host) -> None:
        start(jobs, host)
        if host.name == victim.name:
            victim.kill_sshd()
            if comes_back:
                threading.Timer(1.5, victim.start_sshd).start()
            host.hello()

    monkeypatch.setattr(submission, "_start", start_and_lose)
    before = {run.id for run in list_runs(include_ended=True)}
    try:
        with pytest.raises(IgniteTfError, match="was not started") as caught:
            session.start_run(RunRequest("NUMBERS", "print('here')", 3, max_restarts=0, detach=True))
        told, listed = str(caught.value), {run.id for run in list_runs(include_ended=True)} - before
        run_id = told.split()[1]
        folder = f"{victim.home}/{victim.state}/runs/{run_id}"
        if comes_back:
            assert "Nothing of it is left" in told
            assert not listed
            assert victim.run(["ls", folder], check=False).returncode
        else:
            assert f"What {victim.name} may have of it" in told
            assert listed == {run_id}
    finally:
        if not comes_back:
            victim.start_sshd()


@pytest.mark.nightly
def test_the_node_that_answers_for_the_registry_loses_its_power(session, bed, namespaces, monkeypatch):
    """By then the hosts have the run, so the loss of one node must not make the start fail.

    Nightly. Shorter: tests/runs/registry/test_registry.py::test_nodes_die_while_it_is_written
    """
    await_supervisor, lost = submission._await_supervisor, []

    def lose_and_await(registry, *arguments) -> None:
        client = registry._connected()
        (node,) = [each for each in client.nodes() if each.node_id == client.router.control_node_id()]
        (victim,) = [host for host in bed.hosts if host.address in {each.host for each in node.endpoints}]
        lost.append(victim)
        victim.power_off()
        await_supervisor(registry, *arguments)

    monkeypatch.setattr(submission, "_await_supervisor", lose_and_await)
    try:
        run = session.start_run(RunRequest("NUMBERS", "print('here')", 1, max_restarts=2, detach=True))
        assert run.wait(120).state is RunState.SUCCEEDED
    finally:
        for victim in lost:
            victim.power_on()
            victim.await_node(len(bed.hosts))
        load_numbers(bed)


@pytest.fixture
def registry(bed) -> Iterator[Registry]:
    with connect(bed.connect_options) as client, Registry(client) as opened:
        yield opened


@pytest.fixture
def registry_fails(monkeypatch) -> Callable[[int], None]:
    """Make a number of registry requests fail, once the hosts have the run.

    The errors are injected, because killing a node does not determine which error a client gets.
    """
    await_supervisor = submission._await_supervisor
    monkeypatch.setattr(submission, "_TAKEN_OVER_S", 10.0)

    def begin(times: int) -> None:
        errors = itertools.islice(
            itertools.cycle([ConnectionFailed("away"), DeadlineExceeded("away")]), times
        )

        def fail_and_await(registry, *arguments) -> None:
            registry.get = lambda run: raise_next(errors) or Registry.get(registry, run)
            await_supervisor(registry, *arguments)

        monkeypatch.setattr(submission, "_await_supervisor", fail_and_await)

    return begin


def raise_next(errors: Iterator[Exception]) -> None:
    time.sleep(0.2)
    if (error := next(errors, None)) is not None:
        raise error


@pytest.mark.nightly
def test_a_registry_that_does_not_answer_is_asked_again(session, registry_fails):
    """Nightly. No shorter one: it waits for longer than a host takes to answer for a run."""
    registry_fails(times=55)  # for longer than the time that a host has to take over a run
    run = session.start_run(RunRequest("NUMBERS", "print('here')", 1, detach=True))
    assert run.wait(60).state is RunState.SUCCEEDED


@pytest.mark.nightly
def test_a_registry_that_never_answers_is_told_of(session, registry_fails):
    """Nightly. No shorter one: it waits until the start gives up."""
    registry_fails(times=1000)
    with pytest.raises(
        LaunchError, match=r"whether a host has taken run \S+ over: away\. .* ignite-tf stop"
    ) as caught:
        session.start_run(RunRequest("NUMBERS", "print('here')", 1, detach=True))
    run = get_run(str(caught.value).split("taken run ")[1].split()[0])
    assert run.wait(60).state is RunState.SUCCEEDED
