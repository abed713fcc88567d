"""Tests of a watch over a relay: output, statuses, leases."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import JobState, LinkTimeouts, Renewal
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.watch import MAX_CHUNK_BYTES, Contact, HostWatch
from tests.launch.relay_jobs import Kept, end_all, job, shell_job, status_of
from tests.waiting import until

TIMEOUTS = LinkTimeouts(poll_s=0.2)


@pytest.fixture
def host(home):
    transport = PipeTransport({"IGNITE_TF_HOME": str(home)})
    with Host("h1", transport, python=sys.executable, timeouts=TIMEOUTS) as host:
        yield host
        end_all(host)


@pytest.fixture
def sink():
    return Kept()


@pytest.fixture
def watch(host, sink):
    watches = []

    def watch(*logs: str, **options) -> HostWatch:
        given = {"sink": sink, **options}
        watches.append(HostWatch(host, "r1", logs=given.pop("offsets", dict.fromkeys(logs, 0)), **given))
        return watches[-1]

    yield watch
    for each in watches:
        each.stop()


def has_ended(watch: HostWatch, name: str = "w0") -> bool:
    return name in watch.view.jobs and watch.view.jobs[name].has_ended


def test_output_comes_as_it_was_written_whatever_bytes_it_has(host, sink, watch):
    code = "import os\nfor i in range(256): os.write(1 + i % 2, bytes([i, 10, 13, 255]))"
    watch("w0.log")
    host.start(job("w0", code))
    expected = b"".join(bytes([i, 10, 13, 255]) for i in range(256))
    assert sink.wait_for("w0.log", len(expected)) == expected


def test_when_an_end_is_seen_the_output_before_it_has_come(host, sink, watch):
    seen: list[bytes] = []
    watching = watch("w0.log", on_change=lambda: seen.append(bytes(sink.logs.get("w0.log", b""))))
    host.start(shell_job("w0", "echo one; echo two; exit 3"))
    until(lambda: has_ended(watching))
    assert seen[-1] == b"one\ntwo\n"
    ended = watching.view.jobs["w0"]
    assert (ended.code, ended.log_bytes, watching.offsets) == (3, 8, {"w0.log": 8})


def test_much_output_comes_in_pieces_of_bounded_size(host, sink, watch):
    watch("w0.log")
    host.start(shell_job("w0", "seq 1 6000000"))
    found = sink.wait_for("w0.log", 46_888_896)
    assert found.endswith(b"\n5999999\n6000000\n")
    assert max(sink.sizes) <= MAX_CHUNK_BYTES


def test_reading_goes_on_from_where_it_was(host, watch):
    class Tail(Kept):
        def data(self, host, path, offset, data):
            super().data(host, path, offset - 6, data)

    tail = Tail()
    host.start(shell_job("w0", "echo first; echo second"))
    until(lambda: status_of(host, "w0").has_ended)
    watch(offsets={"w0.log": 6}, sink=tail)
    assert tail.wait_for("w0.log", 7) == b"second\n"


def test_logs_may_be_added(host, sink, watch):
    watching = watch("w0.log")
    host.start(shell_job("w0", "echo zero; exec sleep 60"))
    host.start(shell_job("w1", "echo one; exec sleep 60"))
    sink.wait_for("w0.log", 5)
    watching.add_log("w1.log")
    watching.add_log("w0.log")  # already being read, so it continues
    assert sink.wait_for("w1.log", 4) == b"one\n"
    assert sink.logs["w0.log"] == b"zero\n"


def test_deleted_output_leaves_a_gap(host, sink, watch):
    code = "import os\nfor i in range(400): os.write(1, b'%015d\\n' % i * 512)"
    host.start(job("w0", f"{code}\nimport time; time.sleep(60)", log_limit_bytes=1 << 20))
    status = until(lambda: (s := status_of(host, "w0")).log_bytes == 400 * 8192 and s.log_start and s)
    watch("w0.log")
    found = sink.wait_for("w0.log", status.log_bytes - status.log_start)
    assert sink.gaps == [("w0.log", 0, status.log_start)]
    assert found.endswith(b"%015d\n" % 399)
    assert len(found) == status.log_bytes - status.log_start


def test_a_watch_renews_the_lease_until_it_is_stopped(host, watch):
    watching = watch(renew=Renewal(generation=1, lease_s=1.0))
    host.start(shell_job("w0", "exec sleep 60", lease_s=1.0, grace_s=0.2))
    time.sleep(1.8)
    assert status_of(host, "w0").state is JobState.RUNNING
    watching.stop()
    ended = until(lambda: (s := status_of(host, "w0")).has_ended and s)
    assert ended.reason == "lease"


def test_a_lease_that_is_given_up_or_renewed_with_an_old_token_ends(host, watch):
    watching = watch(renew=Renewal(1, 1.0))
    host.start(shell_job("w0", "exec sleep 60", lease_s=1.0, grace_s=0.2))
    token = until(lambda: watching.view.token)
    watching.set_renewal(Renewal(1, 1.0, token))
    until(lambda: has_ended(watching))
    assert watching.view.jobs["w0"].reason == "lease"
    assert watching.view.token > token


def test_a_sink_that_fails_ends_the_output_and_not_the_lease(host, watch):
    class Full:
        def data(self, host, path, offset, data):
            raise OSError(28, "No space left on device")

        def gap(self, host, path, start, end):
            raise AssertionError

    watching = watch("w0.log", sink=Full(), renew=Renewal(1, 0.8))
    host.start(shell_job("w0", "echo up; exec sleep 60", lease_s=0.8, grace_s=0.2))
    until(lambda: watching.view.sink_error)
    assert "No space left" in watching.view.sink_error
    time.sleep(1.2)
    assert watching.view.jobs["w0"].state is JobState.RUNNING
    assert watching.view.contact is Contact.REACHABLE


def test_while_a_sink_is_busy_nothing_more_comes(host, watch):
    class Busy(Kept):
        def data(self, host, path, offset, data):
            super().data(host, path, offset, data)
            if not is_free.is_set():
                is_busy.set()
                assert is_free.wait(300)

    is_busy, is_free, busy = threading.Event(), threading.Event(), Busy()
    watch("w0.log", sink=busy)
    host.start(shell_job("w0", "seq 1 1000000"))
    assert is_busy.wait(300)
    time.sleep(0.3)
    assert len(busy.sizes) == 1
    is_free.set()
    assert busy.wait_for("w0.log", 6_888_896).endswith(b"\n1000000\n")


def test_after_stop_the_sink_is_left_alone(host, sink, watch):
    watching = watch("w0.log")
    host.start(shell_job("w0", "while :; do echo x; done"))
    sink.wait_for("w0.log", 10)
    watching.stop()
    size = len(sink.logs["w0.log"])
    time.sleep(0.2)
    assert len(sink.logs["w0.log"]) == size
    watching.stop()


def test_what_others_ask_of_the_run_is_seen(host, watch):
    watching = watch()
    host.fence("r1", 7)
    host.request_stop("r1")
    until(lambda: watching.view.stop_asked and watching.view.fence == 7)
    assert watching.view.facts == host.facts


def until_a_heartbeat(watching: HostWatch) -> None:
    beat, heard_at = watching.view.jobs["w0"].beat, watching.view.heard_at
    until(lambda: watching.view.jobs["w0"].beat > beat and watching.view.heard_at > heard_at)


def test_a_change_is_told_and_a_heartbeat_is_not(host, watch):
    changes: list[float] = []
    watching = watch(on_change=lambda: changes.append(time.monotonic()))
    host.start(shell_job("w0", "exec sleep 60"))
    until(lambda: "w0" in watching.view.jobs and watching.view.jobs["w0"].state is JobState.RUNNING)
    until_a_heartbeat(watching)  # all news about the job's start have arrived
    told = len(changes)
    until_a_heartbeat(watching)
    assert len(changes) == told


def test_a_fault_of_a_callback_is_shown(host, watch):
    def fail() -> None:
        raise ZeroDivisionError("oh")

    watching = watch(on_change=fail)
    until(lambda: watching.view.error)
    assert "ZeroDivisionError" in watching.view.error
