"""Tests of a watch over links that break: no byte is lost or doubled, and silence is not taken as an end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time

import psutil
import pytest

from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import JobState, LinkTimeouts
from ignite_tf_magic.launch.link import RelayLink
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.ssh import SshTransport
from ignite_tf_magic.launch.watch import Contact, HostWatch
from tests.launch.relay_jobs import Kept, end_all, shell_job
from tests.launch.sshd import Sshd
from tests.waiting import until

TIMEOUTS = LinkTimeouts(silence_s=1.5, poll_s=0.2, retry_min_s=0.05, retry_max_s=0.2, keepalive_s=0.5)
COUNTING = "i=0; while [ $i -lt {n} ]; do seq $i $((i + 99)); i=$((i + 100)); sleep 0.005; done"


def expected(num_lines: int) -> bytes:
    return "".join(f"{i}\n" for i in range(num_lines)).encode()


@pytest.fixture
def host(box):
    with Host("h1", SshTransport("box", box.options), python=sys.executable, timeouts=TIMEOUTS) as host:
        yield host
        end_all(host)


@contextlib.contextmanager
def watching(host: Host, sink: Kept):
    watch = HostWatch(host, "r1", logs={"w0.log": 0}, sink=sink)
    try:
        yield watch
    finally:
        watch.stop()


def num_connections(box: Sshd) -> int:
    return box.log.count("Accepted publickey")


def test_connections_that_break_in_mid_stream(host, box):
    sink = Kept()
    with watching(host, sink) as watch:
        host.start(shell_job("w0", COUNTING.format(n=20_000)))
        whole = expected(20_000)
        for part in range(1, 5):
            sink.wait_for("w0.log", len(whole) * part // 6)
            time.sleep(random.uniform(0, 0.05))
            num_before = num_connections(box)
            box.kill_sessions()
            until(lambda: num_connections(box) > num_before)  # noqa: B023
        assert sink.wait_for("w0.log", len(whole)) == whole
        until(lambda: watch.view.jobs["w0"].has_ended)
        assert watch.view.jobs["w0"].code == 0


def test_relays_that_die_in_mid_stream(home):
    sink, whole = Kept(), expected(20_000)
    transport = PipeTransport({"IGNITE_TF_HOME": str(home)})
    with Host("h1", transport, python=sys.executable, timeouts=TIMEOUTS) as host, watching(host, sink):
        host.start(shell_job("w0", COUNTING.format(n=20_000)))
        for part in range(1, 7):
            sink.wait_for("w0.log", len(whole) * part // 8)
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(host.facts.pid).kill()
        assert sink.wait_for("w0.log", len(whole)) == whole
        end_all(host)


def test_what_was_known_stays_and_nothing_is_invented(host, box, home, tmp_path):
    sink, go = Kept(), tmp_path / "go"
    with watching(host, sink) as watch:
        host.start(shell_job("w0", f"until [ -e {go} ]; do sleep 0.05; done; echo done; exit 5"))
        until(lambda: "w0" in watch.view.jobs)
        box.stop()
        until(lambda: watch.view.contact is Contact.UNREACHABLE)
        assert "refused" in watch.view.error
        heard_at, since = watch.view.heard_at, watch.view.since
        go.touch()
        until(lambda: not lock.is_held(home / "runs/r1/jobs/w0/lock"), what="its end")
        assert watch.view.contact is Contact.UNREACHABLE
        assert watch.view.jobs["w0"].state is JobState.RUNNING
        assert (watch.view.heard_at, watch.view.since) == (heard_at, since)
        assert watch.view.token is None or watch.view.token_heard_at <= heard_at
        box.start()
        until(lambda: watch.view.contact is Contact.REACHABLE and watch.view.jobs["w0"].has_ended)
        assert (watch.view.jobs["w0"].code, watch.view.error) == (5, None)
        assert sink.wait_for("w0.log", 5) == b"done\n"


def test_a_relay_that_says_nothing_is_given_up_for_another(host):
    contacts: list[Contact] = []
    sink = Kept()
    watch = HostWatch(
        host, "r1", logs={"w0.log": 0}, sink=sink, on_change=lambda: contacts.append(watch.view.contact)
    )
    try:
        until(lambda: watch.view.contact is Contact.REACHABLE)
        mute = psutil.Process(host.facts.pid)
        mute.send_signal(signal.SIGSTOP)
        until(lambda: watch.view.contact is Contact.UNREACHABLE)
        assert "1.5 s" in watch.view.error
        until(lambda: watch.view.contact is Contact.REACHABLE)
        assert host.facts.pid != mute.pid
        mute.kill()
    finally:
        watch.stop()
    assert contacts[0] is Contact.REACHABLE
    assert Contact.UNREACHABLE in contacts


def test_a_dead_link_is_noticed_by_the_keepalive(host, box):
    sink = Kept()
    with watching(host, sink) as watch:
        until(lambda: watch.view.contact is Contact.REACHABLE)
        sessions = box.sessions()
        for session in sessions:
            session.send_signal(signal.SIGSTOP)
        until(lambda: watch.view.contact is Contact.UNREACHABLE)
        until(lambda: watch.view.contact is Contact.REACHABLE)
        for session in sessions:
            session.kill()


def test_a_host_that_cannot_be_used_says_why(home):
    transport = PipeTransport({"IGNITE_TF_HOME": str(home)})
    with Host("h1", transport, python="/no/such/python3", timeouts=TIMEOUTS) as host:
        with watching(host, Kept()) as watch:
            until(lambda: watch.view.contact is Contact.UNREACHABLE)
            assert "/no/such/python3" in watch.view.error
            assert (watch.view.heard_at, watch.view.facts) == (None, None)


def test_a_stop_that_comes_together_with_an_answer_is_heard(home, monkeypatch):
    """Both come in one turn of the event loop. Up to Python 3.11, `asyncio.wait_for` then loses the cancellation."""
    stopping: list[asyncio.Task[None]] = []
    deliver = RelayLink._deliver

    def deliver_and_stop(link, header, payload):
        deliver(link, header, payload)
        if watch.view.contact is Contact.REACHABLE and not stopping:
            stopping.append(asyncio.get_running_loop().create_task(watch._stop()))

    monkeypatch.setattr(RelayLink, "_deliver", deliver_and_stop)
    transport = PipeTransport({"IGNITE_TF_HOME": str(home)})
    with Host("h1", transport, python=sys.executable, timeouts=TIMEOUTS) as host:
        watch = HostWatch(host, "r1", logs={}, sink=Kept())
        try:
            until(lambda: stopping and stopping[0].done())
            heard_at = watch.view.heard_at
            time.sleep(3 * TIMEOUTS.poll_s)  # the watch sends no more requests
            assert watch.view.heard_at == heard_at
        finally:
            watch.stop()
