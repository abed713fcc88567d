"""Tests of GPUs and ports as resources: which runs hold them, which are refused, which wait. Hosts behind pipes."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ignite_tf_magic.errors import LaunchError, NoRoom, PlacementError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.runs.decisions import Observation, decide, needs_plan
from ignite_tf_magic.runs.hosts.capacity import (
    insufficient_capacity,
    limits,
    look,
    needs_capacity,
    told_capacities,
)
from ignite_tf_magic.runs.orders import Capacity, HostProblem, HostReport, Order, Phase
from ignite_tf_magic.runs.record import RunRecord, RunSpec, WorkerRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision import manager
from ignite_tf_magic.runs.supervision.manager import RunHooks
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.runs.timeouts import Timeouts
from tests.alive import is_alive
from tests.bed.fake_gpus import make_nvidia_smi
from tests.runs.light_runs import COME_UP, await_text, free_range, text_of
from tests.runs.pipe_hosts import PipeReach, host_at, living_jobs, plan_on, seats_on
from tests.waiting import until

TWO_GPUS = RunSpec("c", num_workers=2, num_gpus=2)
MUCH = RunSpec("c", num_workers=2, memory_bytes=3 << 30)
RANGE = RunSpec("c", num_workers=3, port_range=(40000, 40003))
SHOW = "import os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
HOLD = SHOW + "time.sleep(60)"


# Decisions.


def test_only_gpus_memory_and_ranges_of_ports_may_be_short():
    assert needs_capacity(TWO_GPUS)
    assert needs_capacity(MUCH)
    assert needs_capacity(RANGE)
    assert not needs_capacity(RunSpec("c", num_workers=3))
    assert needs_capacity(replace(RANGE, num_workers=1))


def test_how_many_workers_have_room():
    assert limits(TWO_GPUS, ["a", "b"], {"a": Capacity(5, 4), "b": Capacity(2, 1)}) == {"a": 2, "b": 0}
    assert limits(RANGE, ["a", "b"], {"a": Capacity(free_ports=1), "b": Capacity(free_ports=3)}) == {
        "a": 1,
        "b": 3,
    }
    both = replace(RANGE, num_gpus=1)
    assert limits(both, ["a"], {"a": Capacity(4, 2, 3)}) == {"a": 2}
    rooms = {"a": Capacity(memory_bytes=8 << 30, free_memory_bytes=5 << 30)}
    assert limits(MUCH, ["a"], rooms) == {"a": 1}
    assert limits(replace(MUCH, num_gpus=1), ["a"], {"a": replace(rooms["a"], num_gpus=9)}) == {"a": 0}


def test_a_run_that_fits_lacks_nothing():
    assert insufficient_capacity(TWO_GPUS, ["a", "b"], {"a": Capacity(2, 2), "b": Capacity(2, 2)}) is None


def test_a_shortage_tells_what_each_host_has_and_who_holds_the_rest():
    rooms = {
        "a": Capacity(4, 2, holders=("run x-1: GPU 0, GPU 1",)),
        "b": Capacity(),
        "c": Capacity(error="no route"),
    }
    assert insufficient_capacity(TWO_GPUS, ["a", "b", "c", "d"], rooms) == (
        "2 workers with 2 GPUs each do not fit now: a: 2 of 4 GPUs free (held by run x-1: GPU 0, GPU 1); "
        "b: no GPUs (nvidia-smi); c: no route; d: it has not reported its free resources yet"
    )
    rooms = {
        "a": Capacity(
            memory_bytes=8 << 30, free_memory_bytes=1 << 29, holders=("run x-1: 7.5 GiB of memory",)
        )
    }
    assert insufficient_capacity(MUCH, ["a"], rooms) == (
        "2 workers with 3 GiB of memory each do not fit now: a: 0.5 GiB of 8 GiB of memory free "
        "(held by run x-1: 7.5 GiB of memory)"
    )
    rooms = {"a": Capacity(free_ports=2, holders=("run x-1: port 40002",))}
    assert insufficient_capacity(RANGE, ["a"], rooms) == (
        "3 workers do not fit now: a: 2 of the ports 40000-40003 ([launch] ports) free (held by run x-1: port 40002)"
    )


@pytest.mark.parametrize(
    ("spec", "room"),
    [
        (TWO_GPUS, Capacity(3, 3)),
        (TWO_GPUS, Capacity()),
        (MUCH, Capacity(memory_bytes=5 << 30, free_memory_bytes=5 << 30)),
        (replace(RANGE, num_workers=5), Capacity(free_ports=4)),
    ],
)
def test_what_no_host_will_ever_have_is_told_at_once(spec, room):
    with pytest.raises(PlacementError, match=r"never fit: a: .*Request fewer") as refused:
        limits(spec, ["a"], {"a": room})
    assert not isinstance(refused.value, NoRoom)


def test_a_host_that_does_not_answer_may_have_room_later():
    assert limits(TWO_GPUS, ["a", "b"], {"a": Capacity(2, 2), "b": Capacity(error="no route")}) == {
        "a": 1,
        "b": 0,
    }


def test_hosts_out_of_reach_do_not_tell():
    reports = {
        "a": HostReport("a", room=Capacity(1, 1)),
        "b": HostReport("b", room=Capacity(1, 1), reachable=False),
        "c": HostReport("c"),
    }
    assert told_capacities(reports) == {"a": Capacity(1, 1)}


def refused_record(*, kind="no_gpu", is_retryable=True, **spec):
    seats = seats_on([host_named("a")])
    order = Order(7, Phase.PREPARE, seats)
    spec = RunSpec("c", num_gpus=1, **{"max_restarts": 0, **spec})
    record = RunRecord("x", spec, RunState.STARTING, 0.0, (WorkerRecord(0, "a"),), order)
    report = HostReport(
        "a", generation=7, fence=8, error=HostProblem(kind, "none is free", is_retryable=is_retryable)
    )
    for _ in range(3):
        record = decide(record, {"a": report}, Observation(1.0), Timeouts())
    return record


def host_named(name):
    class Named:
        pass

    named = Named()
    named.name = name
    return named


def test_who_waits_for_room_and_is_too_late_waits_on_and_has_not_failed():
    record = refused_record(waits_for_room=True)
    assert (record.state, record.num_failures) == (RunState.RESTARTING, 0)
    assert needs_plan(record, {}, Observation(1.0), Timeouts())
    assert refused_record(waits_for_room=True, kind="no_ports").num_failures == 0
    assert refused_record(waits_for_room=True, kind="disk_full", max_restarts=1).num_failures == 1


def test_who_does_not_wait_is_refused():
    record = refused_record(is_retryable=False)
    assert (record.state, record.reason) == (RunState.FAILED, "a: none is free")


def test_a_port_that_was_taken_meanwhile_is_another_attempt_even_without_restarts():
    assert refused_record(kind="port_taken").state is RunState.RESTARTING


# Starts on hosts.


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "hosts"


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Give every host this number of GPUs."""

    def give(number: int) -> None:
        folder = make_nvidia_smi(tmp_path / "smi", number)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return give


class WaitingReach(PipeReach):
    """Reaches hosts and calls `before_start` just before each job starts there."""

    before_start = staticmethod(lambda job: None)

    def open(self, host):
        reach = self

        class Watched(Host):
            def start(self, job, **options):
                reach.before_start(job)
                return super().start(job, **options)

        opened = super().open(host)
        return Watched(
            host.name, opened.transport, python=host.agent_python, root=host.root, timeouts=self.timeouts
        )


@pytest.fixture
def reach(runs_dir) -> WaitingReach:
    return WaitingReach(runs_dir.parent)


@pytest.fixture
def start_on(runs_dir, place, reach):
    """Start or queue a run on hosts. The test fails if any of its processes survive."""
    started = []

    def start(hosts, script, *, waits=False, **options):
        used = options.pop("used", hosts)
        plan = plan_on(hosts, script, used=used, waits_for_room=waits, **options)

        def find(record, reports):
            names = [host.name for host in hosts]
            reason = (
                insufficient_capacity(record.spec, names, told_capacities(reports))
                if needs_capacity(record.spec)
                else None
            )
            if reason is not None:
                raise NoRoom(reason)
            return plan.plan

        begun = plan
        if waits:
            begun = replace(plan, plan=Plan((), plan.plan.hosts, insufficient_capacity="no room yet"))
        run = manager.start_run(begun, runs_dir, reach, lambda _: RunHooks(planner=find))
        started.append(run)
        return run

    yield start
    for run in started:
        run.stop()
    for root in place.iterdir() if place.is_dir() else ():
        until(lambda root=root: living_jobs(root) == [], what="the end of all jobs")


def room_on(reach, host, spec) -> Capacity:
    with reach.open(host) as opened:
        return look(opened, spec)


def test_runs_never_have_the_same_gpu(gpus, start_on, place, reach):
    gpus(3)
    host = host_at(place, "a")
    script = COME_UP + HOLD
    first = start_on([host], script, used=[host, host], num_gpus=1)
    # The hosts lack the library that keeps ports private, so worker 0 of the two prints a notice first.
    said = until(
        lambda: (text := await_text(first, "\n")).count("\n") == 2 and text, what="a notice and a GPU"
    )
    notice, number = said.splitlines(keepends=True)
    assert notice.startswith("ignite_tf_magic: warning: TensorFlow ports of this run")
    assert {number, await_text(first, "\n", 1)} == {"0\n", "1\n"}
    wide = RunSpec("c", num_gpus=2)
    room = room_on(reach, host, wide)
    assert (room.num_gpus, room.free_gpus) == (3, 1)
    held = {f"run {first.id}: GPU 0, GPU 1", f"run {first.id}: GPU 1, GPU 0"}
    assert held & set(room.holders)
    with pytest.raises(LaunchError, match="2 GPUs requested, but only 1 of 3 on .* are free"):
        start_on([host], HOLD, num_gpus=2)
    second = start_on([host], HOLD, num_gpus=1)
    assert await_text(second, "\n") == "2\n"
    first.stop()
    third = start_on([host], HOLD, num_gpus=2)
    assert await_text(third, "\n") == "0,1\n"


def test_limits_of_memory_are_handed_out_once(start_on, place, reach):
    host = host_at(place, "a")
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 5
    first = start_on([host], "import time\nprint('up', flush=True)\ntime.sleep(60)", memory_bytes=most)
    await_text(first, "up")
    room = room_on(reach, host, RunSpec("c", memory_bytes=most))
    assert (room.memory_bytes * 3 // 5, room.memory_bytes - room.free_memory_bytes) == (most, most)
    assert f"run {first.id}: {most / 2**30:.3g} GiB of memory" in room.holders
    with pytest.raises(LaunchError, match=r"MiB of memory requested, but only \d+ of \d+ MiB on .* are free"):
        start_on([host], SHOW, memory_bytes=most)
    second = start_on([host], "print('had room')", memory_bytes=most, waits=True)
    until(lambda: first.id in (second.info().waiting_for or ""), what="the reason")
    first.stop()
    assert text_of(second) == "had room\n"


def test_a_worker_with_more_memory_than_its_limit_is_ended_once_and_told_of(start_on, place):
    """Memory of child processes counts. Memory that was reserved but not touched does not count."""
    script = (
        "import mmap, subprocess, sys, time\n"
        "untouched = mmap.mmap(-1, 1 << 30)\n"
        "print('small', flush=True)\n"
        "time.sleep(3)\n"
        "print('large', flush=True)\n"
        "code = 'import time; taken = b\"x\" * (300 << 20); time.sleep(60)'\n"
        "subprocess.run([sys.executable, '-c', code])"
    )
    run = start_on([host_at(place, "a")], script, memory_bytes=200 << 20, max_restarts=3)
    info = run.wait(300)
    assert (info.state, info.restarts) == (RunState.FAILED, 0)
    assert "it was ended because it exceeded its memory limit (--memory)" in run.failure().summary
    assert text_of(run).startswith("small\nlarge\n")


def test_gpus_are_free_when_the_shims_of_a_worker_are_killed(gpus, start_on, place, reach):
    gpus(1)
    host = host_at(place, "a")
    run = start_on([host], HOLD, num_gpus=1)
    await_text(run, "0\n")
    (status,) = Path(host.root).glob(f"runs/{run.id}/jobs/g1-worker-0/status.json")
    for shim in json.loads(status.read_text())["keepers"]:
        os.kill(shim, signal.SIGKILL)
    info = run.wait(300)
    assert info.state is RunState.FAILED
    assert not is_alive(info.workers[0].pid)
    assert room_on(reach, host, RunSpec("c", num_gpus=1)).free_gpus == 1
    again = start_on([host], SHOW, num_gpus=1)
    assert text_of(again) == "0\n"


def test_a_queued_run_starts_when_there_is_room_and_can_be_stopped_before(gpus, start_on, place):
    gpus(1)
    host = host_at(place, "a")
    first = start_on([host], HOLD, num_gpus=1)
    await_text(first, "0\n")
    second, third = (start_on([host], SHOW, num_gpus=1, waits=True) for _ in range(2))
    reason = f"1 worker with 1 GPU each do not fit now: a: 0 of 1 GPUs free (held by run {first.id}: GPU 0)"
    until(lambda: second.info().waiting_for == reason, what="the reason")
    assert (second.info().state, second.info().restarts) == (RunState.QUEUED, 0)
    stopped = third.stop().info
    assert (stopped.state, stopped.workers) == (RunState.STOPPED, ())
    first.stop()
    assert text_of(second) == "0\n"
    assert second.wait(300).state is RunState.SUCCEEDED


def test_of_many_that_wait_for_one_gpu_each_has_its_turn(gpus, start_on, place, tmp_path):
    """A run that loses the race for the GPU has not failed. No run may restart even once here."""
    gpus(1)
    host = host_at(place, "a")
    alone = tmp_path / "alone"
    script = (
        f"import os, time\nos.close(os.open({str(alone)!r}, os.O_CREAT | os.O_EXCL))\n"
        f"time.sleep(0.2)\nos.unlink({str(alone)!r})\nprint('had it')\n"
    )
    runs = [start_on([host], script, num_gpus=1, waits=True) for _ in range(3)]
    for run in runs:
        assert run.wait(300).state is RunState.SUCCEEDED, run.failure()
        assert text_of(run).endswith("had it\n")


def test_a_queued_run_has_a_deadline(gpus, start_on, place):
    gpus(1)
    host = host_at(place, "a")
    first = start_on([host], HOLD, num_gpus=1)
    await_text(first, "0\n")
    second = start_on([host], SHOW, num_gpus=1, waits=True, deadline_s=0.5)
    info = second.wait(300)
    assert (info.state, info.exit_code) == (RunState.FAILED, 124)
    assert "it exceeded its deadline of 0.5 s" in info.reason


# Ports.


def test_in_a_range_for_one_run_the_second_is_refused_and_told_by_whom(start_on, place, reach):
    host, ports = host_at(place, "a"), free_range(2)
    script = COME_UP + "print('up', flush=True)\ntime.sleep(60)"
    first = start_on([host], script, used=[host, host], port_range=ports)
    await_text(first, "up")
    spec = RunSpec("c", num_workers=2, port_range=ports)
    reason = insufficient_capacity(spec, ["a"], {"a": room_on(reach, host, spec)})
    assert (
        f"a: 0 of the ports {ports[0]}-{ports[1]} ([launch] ports) free (held by run {first.id}: port "
        in reason
    )
    with pytest.raises(LaunchError, match=f"too few of the ports from {ports[0]} to {ports[1]} are free: 0"):
        start_on([host], script, used=[host, host], port_range=ports, max_restarts=5)
    queued = start_on([host], COME_UP, used=[host, host], port_range=ports, waits=True)
    until(lambda: first.id in (queued.info().waiting_for or ""), what="the reason")
    first.stop()
    assert queued.wait(300).state is RunState.SUCCEEDED, queued.failure()


def listen_at(port: int) -> socket.socket:
    """Listen like gRPC servers, which share the port with other programs of the same user."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("", port))
    listener.listen()
    return listener


def test_a_port_that_somebody_takes_before_the_start_is_replaced_by_another(start_on, place, monkeypatch):
    taken = []

    def take(job):
        if not taken:
            taken.append(listen_at(job.ports[0]))

    monkeypatch.setattr(WaitingReach, "before_start", staticmethod(take))
    host = host_at(place, "a")
    try:
        run = start_on([host], COME_UP, used=[host, host], port_range=free_range(4))
        info = run.wait(300)
        assert (info.state, info.restarts) == (RunState.SUCCEEDED, 1), run.failure()
        record = RunRecord.read(run.directory)
        assert record.num_failures == 1
        assert f"port {taken[0].getsockname()[1]}" in record.past[0].cause
        ports = [int(address.rpartition(":")[2]) for address in record.order.addresses]
        assert taken[0].getsockname()[1] not in ports
    finally:
        for each in taken:
            each.close()


TAKEN = COME_UP + (
    "mark = f\"{os.environ['IGNITE_TF_RUN_DIR']}/{index}\"\n"
    "tries = len(open(mark).read()) if os.path.exists(mark) else 0\n"
    "open(mark, 'a').write('x')\n"
    "if index == 0 and tries < TRIES:\n"
    "    with socket.socket() as second: second.bind((host, int(port)))\n"
)


@pytest.mark.parametrize(("tries", "state"), [(2, RunState.SUCCEEDED), (3, RunState.FAILED)])
def test_a_server_that_cannot_have_its_port_is_tried_three_times(start_on, place, tries, state):
    host = host_at(place, "a")
    run = start_on([host], TAKEN.replace("TRIES", str(tries)), used=[host, host])
    info = run.wait(300)
    assert (info.state, info.restarts) == (state, 2), run.failure()
    assert (
        "worker 0 on a could not use its port, which is taken" in RunRecord.read(run.directory).past[0].cause
    )
