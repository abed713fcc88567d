"""Tests of a supervisor's decisions: single cases, and random sequences of events on three hosts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ignite_tf_magic.runs.decisions import (
    EXIT_DEADLINE,
    EXIT_NOT_STARTED,
    EXIT_STOPPED,
    Observation,
    decide,
    give_up,
    needs_plan,
    next_generation,
)
from ignite_tf_magic.runs.orders import HostProblem, HostReport, Order, Phase, TaskSlot, WorkerEnd
from ignite_tf_magic.runs.record import RunRecord, RunSpec, WorkerRecord
from ignite_tf_magic.runs.roles import Strategy
from ignite_tf_magic.runs.states import TRANSITIONS, RunState
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.runs.verdicts import EXIT_HOST_LOST

TIMEOUTS = Timeouts()
HOSTS = ("a", "b", "c")
PORT_WORDS = ("Could not start gRPC server",)


def seated_record(hosts="ab", *, phase=Phase.RUN, state=RunState.RUNNING, **spec) -> RunRecord:
    seats = tuple(TaskSlot(i, host, "n:10800", None) for i, host in enumerate(hosts))
    addresses = (
        tuple(f"{host}:{5000 + i}" for i, host in enumerate(hosts)) if phase is not Phase.PREPARE else ()
    )
    workers = tuple(WorkerRecord(seat.worker, seat.host) for seat in seats)
    order = Order(1, phase, seats, addresses)
    return RunRecord("x", RunSpec("c", num_workers=len(hosts), **spec), state, 0.0, workers, order)


def report_of(host, **options) -> HostReport:
    return HostReport(host, **{"generation": 1, "fence": 1, **options})


def settled(record, reports, observation=None):
    """Call `decide` until its result does not change."""
    observation = observation or Observation(1.0)
    for _ in range(5):
        following = decide(record, reports, observation, TIMEOUTS)
        if following == record:
            return record
        record = following
    raise AssertionError(f"it does not settle: {record}")


def gone(host, **options):
    return report_of(host, fence=2, **options)


def served_record(*, has_evaluator=False, **spec) -> RunRecord:
    """Return a run with two workers and a parameter server, driven by a chief, all on one host."""
    record = seated_record("aaaaa" if has_evaluator else "aaaa")
    spec = RunSpec("c", 2, strategy=Strategy.ASYNC, num_ps=1, has_evaluator=has_evaluator, **spec)
    return replace(record, spec=spec)


# Single cases.


def test_servers_are_ended_when_the_chief_has_succeeded():
    record, done = served_record(), {3: WorkerEnd(0, "exited", ended_at=1.0)}
    finishing = decide(record, {"a": report_of("a", ends=done)}, Observation(1.0), TIMEOUTS)
    assert (finishing.state, finishing.order.phase) == (RunState.FINISHING, Phase.END)
    stopped = decide(finishing, {"a": report_of("a", ends=done)}, Observation(1.0, stop_asked=True), TIMEOUTS)
    assert stopped == finishing
    ends = {number: WorkerEnd(-15, "fenced") for number in range(3)} | done
    ended = settled(finishing, {"a": gone("a", ends=ends)})
    assert (ended.state, ended.exit_code, ended.reason) == (RunState.SUCCEEDED, 0, None)


def test_an_evaluator_may_finish_for_a_while():
    record, done = (
        served_record(has_evaluator=True, finish_timeout_s=60.0),
        {3: WorkerEnd(0, "exited", ended_at=5.0)},
    )
    waits = settled(record, {"a": report_of("a", ends=done)}, Observation(60.0))
    assert (waits.state, waits.waiting_for) == (RunState.RUNNING, "the evaluator, which may finish its work")
    assert (
        decide(waits, {"a": report_of("a", ends=done)}, Observation(66.0), TIMEOUTS).state
        is RunState.FINISHING
    )
    both = done | {4: WorkerEnd(0, "exited", ended_at=7.0)}
    assert (
        decide(waits, {"a": report_of("a", ends=both)}, Observation(8.0), TIMEOUTS).state
        is RunState.FINISHING
    )


def test_a_parameter_server_that_ends_fails_the_generation():
    ends = {2: WorkerEnd(-9, "exited", ended_at=1.0)}
    failing = decide(served_record(), {"a": report_of("a", ends=ends)}, Observation(1.0), TIMEOUTS)
    assert failing.state is RunState.FAILING
    again = settled(failing, {"a": gone("a", ends=ends)})
    assert again.state is RunState.RESTARTING
    assert again.reason == "ps 0 on a: exit code 137: killed by SIGKILL (out of memory?)"


def test_a_process_that_was_started_again_is_noted():
    record = decide(
        served_record(), {"a": report_of("a", pids={0: 8}, respawns={0: 1})}, Observation(1.0), TIMEOUTS
    )
    assert (record.state, record.workers[0].pid, record.workers[0].respawns) == (RunState.RUNNING, 8, 1)


def test_servers_need_not_be_seen_to_join():
    record = served_record()
    late = Observation(10_000.0, state_age_s=10_000.0)
    assert settled(record, {"a": report_of("a", up=frozenset({0}))}, late).state is RunState.RUNNING


def test_addresses_are_ordered_once_every_host_has_told_its_ports():
    record = seated_record(phase=Phase.PREPARE, state=RunState.STARTING)
    ready = {"a": report_of("a", ports={0: 70}, address="10.0.0.1"), "b": report_of("b", ports={1: 71})}
    assert decide(record, ready, Observation(1.0), TIMEOUTS) == record
    ready["b"] = replace(ready["b"], address="fe80::1")
    ordered = decide(record, ready, Observation(1.0), TIMEOUTS)
    assert ordered.order.phase is Phase.RUN
    assert ordered.order.addresses == ("10.0.0.1:70", "[fe80::1]:71")


def test_what_a_host_says_of_an_older_generation_is_passed_over():
    record = replace(seated_record(), order=replace(seated_record().order, generation=2))
    stale = {"a": report_of("a", pids={0: 7}, ends={0: WorkerEnd(1)}, error=HostProblem("x", "y", False))}
    assert decide(record, stale, Observation(1.0), TIMEOUTS) == record


def test_it_has_failed_only_when_no_worker_can_be_alive_or_be_started():
    failed = decide(seated_record(max_restarts=0), {"a": report_of("a", ends={0: WorkerEnd(1, "exited")})},
                    Observation(1.0), TIMEOUTS)  # fmt: skip
    assert (failed.state, failed.order.phase) == (RunState.FAILING, Phase.END)
    a, b = gone("a", ends={0: WorkerEnd(1, "exited")}), gone("b")
    for not_yet in (
        {"a": a},  # no report from b yet
        {"a": a, "b": report_of("b")},  # it has no worker, but may be starting one
        {"a": a, "b": gone("b", living=("g1-worker-1",))},
        {"a": a, "b": report_of("b", reachable=False, silent_s=TIMEOUTS.dead_after_s)},
    ):
        assert decide(failed, not_yet, Observation(1.0), TIMEOUTS).state is RunState.FAILING
    for dead in (b, report_of("b", reachable=False, silent_s=TIMEOUTS.dead_after_s + 0.1)):
        ended = decide(failed, {"a": a, "b": dead}, Observation(9.0), TIMEOUTS)
        assert (ended.state, ended.exit_code, ended.ended_at) == (RunState.FAILED, 1, 9.0)


def test_hosts_that_were_never_told_to_start_are_not_waited_for():
    """One host has no interpreter. It never answers, so no silence can be measured."""
    record = seated_record(phase=Phase.PREPARE, state=RunState.STARTING)
    dead = report_of(
        "b", reachable=False, error=HostProblem("NoInterpreter", "b has no python3", is_retryable=False)
    )
    ended = settled(record, {"a": report_of("a", ports={0: 70}, address="x"), "b": dead})
    assert (ended.state, ended.exit_code) == (RunState.FAILED, EXIT_NOT_STARTED)
    assert ended.reason == "b: b has no python3"
    assert ended.failed_worker == 1


def test_a_host_that_is_silent_for_too_long_is_lost_and_its_run_starts_again():
    silent = {"a": report_of("a"), "b": report_of("b", reachable=False, silent_s=20.0)}
    waiting = decide(seated_record(), silent, Observation(1.0), TIMEOUTS)
    assert waiting.state is RunState.RUNNING
    assert waiting.waiting_for == "b: out of reach, trying to reconnect"
    back = decide(waiting, {**silent, "b": report_of("b")}, Observation(1.0), TIMEOUTS)
    assert back == seated_record()
    silent["b"] = replace(silent["b"], silent_s=TIMEOUTS.dead_after_s + 1)
    lost = decide(waiting, silent, Observation(1.0), TIMEOUTS)
    assert (lost.state, lost.exit_code, lost.failed_worker) == (RunState.FAILING, EXIT_HOST_LOST, 1)
    assert settled(lost, {**silent, "a": gone("a")}).state is RunState.RESTARTING


def test_a_worker_that_ended_before_its_host_fell_silent_is_not_lost():
    record = seated_record().with_worker(WorkerRecord(1, "b", exit_code=0))
    silent = {"a": report_of("a"), "b": report_of("b", reachable=False, silent_s=1e6)}
    assert decide(record, silent, Observation(1.0), TIMEOUTS).state is RunState.RUNNING


def test_failures_in_a_row_are_counted_and_bounded():
    record = seated_record("a", max_restarts=2)
    for number in range(1, 3):
        ended = {"a": HostReport("a", record.generation, ends={0: WorkerEnd(75, "exited")}, fence=9)}
        again = settled(record, ended)
        assert (again.state, again.num_failures) == (RunState.RESTARTING, number)
        assert again.past[-1].cause == "worker 0 on a: exit code 75"
        record = next_generation(again, again.order.seats)
        assert (record.state, record.generation) == (RunState.STARTING, number + 1)
    last = settled(record, {"a": HostReport("a", 3, ends={0: WorkerEnd(75, "exited")}, fence=9)})
    assert (last.state, last.exit_code, last.num_failures) == (RunState.FAILED, 75, 2)


def test_a_taken_port_is_tried_again_even_when_no_restarts_are_allowed():
    record = seated_record("a", max_restarts=0)
    for _ in range(2):
        end = WorkerEnd(1, "exited", last_lines=PORT_WORDS)
        again = settled(record, {"a": HostReport("a", record.generation, ends={0: end}, fence=9)})
        assert again.state is RunState.RESTARTING
        record = next_generation(again, again.order.seats)
    last = settled(record, {"a": HostReport("a", 3, ends={0: end}, fence=9)})
    assert last.state is RunState.FAILED


def test_an_exception_is_final():
    mine = WorkerEnd(1, "exited", exception="ValueError", traceback="ValueError: x")
    final = settled(seated_record("a"), {"a": gone("a", ends={0: mine})})
    assert (final.state, final.exit_code, final.end) == (RunState.FAILED, 1, mine)


def test_a_worker_that_computes_long_before_it_joins_is_told_of_and_goes_on():
    reports = {"a": report_of("a", up=frozenset({0})), "b": report_of("b", last_lines={1: "loading"})}
    joined = decide(seated_record(), reports, Observation(100.0), TIMEOUTS)
    assert (joined.state, joined.workers[0].joined_at) == (RunState.RUNNING, 100.0)
    assert decide(joined, reports, Observation(280.0), TIMEOUTS) == joined
    late = decide(joined, reports, Observation(281.0), TIMEOUTS)
    assert late.state is RunState.RUNNING
    assert "worker 1 runs, but has not joined within 180 s; worker 0 waits for it" in late.waiting_for
    assert decide(late, reports, Observation(9000.0), TIMEOUTS) == late, "nothing is written again"
    both = {**reports, "b": report_of("b", up=frozenset({1}))}
    assert settled(late, both, Observation(9001.0)).waiting_for is None
    bounded = replace(late, spec=replace(late.spec, deadline_s=300.0))
    ended = decide(bounded, reports, Observation(301.0), TIMEOUTS)
    assert (ended.state, ended.exit_code) == (RunState.FAILING, EXIT_DEADLINE)


def test_processes_that_run_are_a_run_that_runs():
    """The content of the script does not matter; it may not need a TensorFlow server at all."""
    starting = replace(seated_record(), state=RunState.STARTING)
    one = decide(
        starting, {"a": report_of("a", pids={0: 7}), "b": report_of("b")}, Observation(1.0), TIMEOUTS
    )
    assert one.state is RunState.STARTING
    late = decide(one, {"b": report_of("b")}, Observation(1.0, state_age_s=181.0), TIMEOUTS)
    assert (late.exit_code, late.failed_worker) == (EXIT_DEADLINE, 1)
    assert "not started within 180 s: worker 1 on b; " in late.reason
    both = {"a": report_of("a", pids={0: 7}), "b": report_of("b", ends={1: WorkerEnd(0, "exited")})}
    running = decide(starting, both, Observation(1.0), TIMEOUTS)
    assert running.state is RunState.RUNNING
    assert decide(running, both, Observation(1e6, state_age_s=1e6), TIMEOUTS) == running


def test_a_host_that_is_not_prepared_in_time_is_named():
    record = seated_record(phase=Phase.PREPARE, state=RunState.STARTING)
    reports = {"a": report_of("a", ports={0: 70}, address="x"), "b": report_of("b")}
    late = decide(record, reports, Observation(1.0, state_age_s=181.0), TIMEOUTS)
    assert "not prepared within 180 s: b; " in late.reason


def test_nobody_waits_for_a_worker_that_has_done_its_work_or_is_out_of_sight():
    up = report_of("a", up=frozenset({0}))
    joined = decide(seated_record(), {"a": up, "b": report_of("b")}, Observation(1.0), TIMEOUTS)
    late = Observation(1000.0)
    done = {"a": up, "b": report_of("b", ends={1: WorkerEnd(0, "exited")})}
    assert decide(joined, done, late, TIMEOUTS).state is RunState.RUNNING
    alone = {"a": report_of("a", ends={0: WorkerEnd(0, "exited")}), "b": report_of("b")}
    assert decide(joined, alone, late, TIMEOUTS).state is RunState.RUNNING
    silent = {"a": up, "b": report_of("b", reachable=False, silent_s=10.0)}
    assert decide(joined, silent, late, TIMEOUTS).waiting_for == "b: out of reach, trying to reconnect"
    for nobody_waits in (done, alone):
        assert decide(joined, nobody_waits, late, TIMEOUTS).waiting_for is None
    patient = replace(joined, spec=replace(joined.spec, start_timeout_s=None))
    assert decide(patient, {"a": up, "b": report_of("b")}, late, TIMEOUTS) == patient


def test_a_change_of_owners_restarts_without_counting_as_a_failure():
    observation = Observation(1.0, owners_changed=True)
    moved = settled(seated_record(), {"a": gone("a"), "b": gone("b")}, observation)
    assert (moved.state, moved.num_failures) == (RunState.RESTARTING, 0)
    assert needs_plan(moved, {"a": gone("a"), "b": gone("b")}, observation, TIMEOUTS)
    assert not needs_plan(
        moved, {"a": gone("a"), "b": gone("b")}, replace(observation, may_lead=False), TIMEOUTS
    )
    ignoring = seated_record(restarts_on_rebalance=False)
    assert decide(ignoring, {"a": report_of("a"), "b": report_of("b")}, observation, TIMEOUTS) == ignoring


def test_owners_that_have_not_settled_are_told_of():
    both, observation = {"a": report_of("a"), "b": report_of("b")}, Observation(1.0, owners_changing=True)
    told = decide(seated_record(), both, observation, TIMEOUTS)
    assert (told.state, told.waiting_for) == (
        RunState.RUNNING,
        "the primary owners of the cache's partitions are changing",
    )
    assert decide(told, both, Observation(2.0), TIMEOUTS).waiting_for is None


def test_a_restart_after_failures_waits_longer_each_time():
    restarting = replace(seated_record("a", phase=Phase.END, state=RunState.RESTARTING), num_failures=3)
    reports = {"a": gone("a")}
    assert not needs_plan(restarting, reports, Observation(1.0, state_age_s=3.9), TIMEOUTS)
    assert needs_plan(restarting, reports, Observation(1.0, state_age_s=4.0), TIMEOUTS)
    assert [TIMEOUTS.backoff_s(n) for n in (0, 1, 2, 6, 60, 5000)] == [1.0, 1.0, 2.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(
    "state", [RunState.STARTING, RunState.RUNNING, RunState.FAILING, RunState.RESTARTING]
)
def test_a_stop_wins_over_everything(state):
    record = seated_record("a", state=state, deadline_s=1.0)
    failed = {"a": report_of("a", ends={0: WorkerEnd(1)}, error=HostProblem("x", "y", True), stop_asked=True)}
    stopping = decide(record, failed, Observation(9.0, owners_changed=True), TIMEOUTS)
    assert stopping.state is RunState.STOPPING
    assert not needs_plan(stopping, failed, Observation(9.0), TIMEOUTS)
    ended = settled(stopping, {"a": gone("a")})
    assert (ended.state, ended.exit_code) == (RunState.STOPPED, EXIT_STOPPED)


def test_a_queued_run_can_be_stopped_be_too_late_or_find_room():
    queued = replace(seated_record(deadline_s=5.0), state=RunState.QUEUED, order=Order(), workers=())
    assert needs_plan(queued, {}, Observation(1.0), TIMEOUTS)
    assert settled(queued, {}, Observation(1.0, stop_asked=True)).state is RunState.STOPPED
    late = settled(queued, {}, Observation(6.0))
    assert (late.state, late.exit_code) == (RunState.FAILED, EXIT_DEADLINE)
    begun = next_generation(queued, seated_record().order.seats)
    assert (begun.state, begun.generation) == (RunState.STARTING, 1)


def test_giving_up_is_final():
    record = seated_record("a", phase=Phase.END, state=RunState.RESTARTING)
    ended = settled(give_up(record, "no host"), {"a": gone("a")})
    assert (ended.state, ended.exit_code, ended.reason) == (RunState.FAILED, EXIT_DEADLINE, "no host")


# Random sequences.


@dataclass
class World:
    """The true state of a host: its orders, its living workers, and whether it is reachable."""

    name: str
    is_cut: bool = False
    heard_at: float = 0.0
    fence: int = 0
    living: set[tuple[int, int]] = field(default_factory=set)
    ends: dict[tuple[int, int], WorkerEnd] = field(default_factory=dict)
    order: Order | None = None  # the order that the host follows, which may be an old one
    obstacle: tuple[int, HostProblem] | None = None

    def prepare_or_start(self) -> None:
        order = self.order
        if order is None or self.is_cut or self.fence > order.generation:
            return
        self.fence = order.generation
        if order.phase is Phase.RUN:
            mine = {(order.generation, seat.worker) for seat in order.on(self.name)}
            self.living |= mine - set(self.ends)

    def end(self, place, end) -> None:
        if place in self.living:
            self.living.discard(place)
            self.ends[place] = end

    def report(self, now: float) -> HostReport:
        generation = self.order.generation if self.order else 0
        mine = self.order.on(self.name) if self.order else ()
        error = self.obstacle[1] if self.obstacle and self.obstacle[0] == generation else None
        return HostReport(
            self.name,
            generation,
            reachable=not self.is_cut,
            silent_s=now - self.heard_at,
            ports={seat.worker: 5000 + seat.worker for seat in mine},
            address=self.name,
            up=frozenset(worker for g, worker in self.living if g == generation),
            pids={worker: 100 + worker for g, worker in self.living if g == generation},
            ends={worker: end for (g, worker), end in self.ends.items() if g == generation},
            living=tuple(f"g{g}-worker-{worker}" for g, worker in sorted(self.living)),
            fence=self.fence,
            error=error,
        )


ends = st.sampled_from(
    [
        WorkerEnd(0, "exited"),
        WorkerEnd(1, "exited"),
        WorkerEnd(1, "exited", exception="ValueError", traceback="ValueError"),
        WorkerEnd(75, "exited"),
        WorkerEnd(-9, "exited", oom=True),
        WorkerEnd(None, "agent_lost"),
        WorkerEnd(1, "exited", last_lines=PORT_WORDS),
        WorkerEnd(143, "ended", asked_to_end=True),
        WorkerEnd(-9, "lease"),
    ]
)
hosts = st.sampled_from(HOSTS)


class AnyRun(RuleBasedStateMachine):
    """A state machine: hosts obey late, fall silent and return, workers end, and the supervisor sees old reports."""

    @initialize(
        places=st.lists(hosts, min_size=1, max_size=4),
        max_restarts=st.integers(0, 3),
        deadline_s=st.none() | st.integers(1, 400),
    )
    def begin(self, places, max_restarts, deadline_s):
        self.now = self.since = 0.0
        self.stop_asked = self.owners_changed = False
        self.tried_a_port = False
        self.worlds = {name: World(name) for name in HOSTS}
        self.reports: dict[str, HostReport] = {}
        first = seated_record(places, phase=Phase.PREPARE, state=RunState.STARTING)
        spec = RunSpec("c", num_workers=len(places), max_restarts=max_restarts, deadline_s=deadline_s)
        self.record = replace(first, spec=spec)

    # Events on hosts.

    @rule(host=hosts)
    def host_hears_of_the_newest_order(self, host):
        if not self.worlds[host].is_cut:
            self.worlds[host].order = self.record.order

    @rule(host=hosts)
    def host_does_what_it_had_heard(self, host):
        world = self.worlds[host]
        if world.order is None or world.is_cut:
            return
        if world.order.phase is Phase.END:
            world.fence = max(world.fence, world.order.generation + 1)
        else:
            world.prepare_or_start()

    @rule(host=hosts, end=ends, pick=st.integers(0, 9))
    def worker_ends(self, host, end, pick):
        living = sorted(self.worlds[host].living)
        if living:
            self.worlds[host].end(living[pick % len(living)], end)
            self.tried_a_port |= end.last_lines == PORT_WORDS

    @rule(host=hosts)
    def fenced_workers_end(self, host):
        world = self.worlds[host]
        for place in sorted(world.living):
            if place[0] < world.fence:
                world.end(place, WorkerEnd(143, "fenced", asked_to_end=True))

    @rule(host=hosts)
    def cable_is_pulled(self, host):
        self.worlds[host].is_cut = True

    @rule(host=hosts)
    def cable_is_back(self, host):
        self.worlds[host].is_cut = False

    @rule(host=hosts, is_retryable=st.booleans())
    def host_refuses(self, host, is_retryable):
        self.worlds[host].obstacle = (self.record.generation, HostProblem("x", "no room", is_retryable))

    @rule(seconds=st.sampled_from([0.2, 1.0, 10.0, 30.0, 60.0]))
    def time_passes(self, seconds):
        self.now += seconds
        for world in self.worlds.values():
            if not world.is_cut:
                world.heard_at = self.now
            elif self.now - world.heard_at > TIMEOUTS.lease_s + TIMEOUTS.grace_s:
                for place in sorted(world.living):
                    world.end(place, WorkerEnd(-9, "lease"))

    @rule(host=hosts)
    def report_arrives(self, host):
        if not self.worlds[host].is_cut:
            self.worlds[host].heard_at = self.now
            self.reports[host] = self.worlds[host].report(self.now)

    @rule()
    def somebody_asks_for_a_stop(self):
        self.stop_asked = True

    @rule(changed=st.booleans())
    def owners_move(self, changed):
        self.owners_changed = changed

    @rule(places=st.lists(hosts, min_size=4, max_size=4), skipped=hosts)
    def all_but_one_do_their_work(self, places, skipped):
        """Make every phase frequent. If the skipped host has no worker in this order, all hosts act."""
        for host in HOSTS:
            if host != skipped or host not in self.record.order.hosts:
                self.host_hears_of_the_newest_order(host)
                self.host_does_what_it_had_heard(host)
                self.report_arrives(host)
        self.supervisor_decides(places)

    @rule(places=st.lists(hosts, min_size=4, max_size=4))
    def all_do_their_work(self, places):
        for host in HOSTS:
            self.host_hears_of_the_newest_order(host)
            self.host_does_what_it_had_heard(host)
            self.report_arrives(host)
        self.supervisor_decides(places)

    @rule(host=hosts, other=hosts, end=ends, places=st.lists(hosts, min_size=4, max_size=4))
    def a_host_is_slow_and_everything_goes_on_meanwhile(self, host, other, end, places):
        """A host receives an order, and executes it long after the supervisor decided otherwise."""
        self.host_hears_of_the_newest_order(host)
        self.worker_ends(other, end, 0)
        self.report_arrives(other)
        for _ in range(4):
            self.supervisor_decides(places)
            if other != host:
                self.host_hears_of_the_newest_order(other)
                self.host_does_what_it_had_heard(other)
                self.fenced_workers_end(other)
                self.report_arrives(other)
        self.host_does_what_it_had_heard(host)

    @rule(host=hosts, other=hosts, end=ends, places=st.lists(hosts, min_size=4, max_size=4))
    def a_cable_is_out_while_another_worker_ends(self, host, other, end, places):
        self.cable_is_pulled(host)
        self.time_passes(30.0)
        self.a_host_is_slow_and_everything_goes_on_meanwhile(host, other, end, places)

    # The supervisor.

    def seen(self) -> dict[str, HostReport]:
        """Return the last reports with current silence and reachability, which the supervisor measures itself."""
        return {
            name: replace(
                report,
                reachable=not self.worlds[name].is_cut,
                silent_s=self.now - self.worlds[name].heard_at,
            )
            for name, report in self.reports.items()
        }

    @rule(places=st.lists(hosts, min_size=4, max_size=4))
    def supervisor_decides(self, places):
        before, reports = self.record, self.seen()
        observation = Observation(self.now, self.now - self.since, self.stop_asked, self.owners_changed)
        after = decide(before, reports, observation, TIMEOUTS)
        successor = RunRecord.from_json(json.loads(json.dumps(before.to_json())))
        assert decide(successor, reports, observation, TIMEOUTS) == after
        self.check_step(before, after)
        settled(before, reports, observation)
        if self.stop_asked and not before.state.has_ended:
            assert after.state in (RunState.STOPPING, RunState.STOPPED)
        if after.state is before.state and needs_plan(after, reports, observation, TIMEOUTS):
            for world in self.worlds.values():
                assert not world.living
            seats = tuple(TaskSlot(i, places[i], "n:1", None) for i in range(after.spec.num_workers))
            after = next_generation(after, seats)
            self.owners_changed = False
        if after.state is not before.state:
            self.since = self.now
        self.record = after

    def check_step(self, before: RunRecord, after: RunRecord) -> None:
        ways = {to for (come, _), to in TRANSITIONS.items() if come is before.state}
        assert after.state is before.state or after.state in ways
        assert after.generation == before.generation
        assert 0 <= after.num_failures - before.num_failures <= 1
        assert 0 <= len(after.past) - len(before.past) <= 1
        tries = max(after.spec.max_restarts, 2 if self.tried_a_port else 0)
        assert after.num_failures <= tries
        if before.state.has_ended:
            assert after == before
        if after.state.has_ended:
            assert after.ended_at is not None
            assert after.exit_code is not None
            assert (after.exit_code == 0) is (after.state is RunState.SUCCEEDED)

    @invariant()
    def only_one_generation_lives(self):
        living = {place for world in self.worlds.values() for place in world.living}
        assert len({generation for generation, _ in living}) <= 1
        if self.record.state.has_ended:
            assert not living

    def teardown(self):
        """Assert that the run ends once all hosts answer and workers succeed or end on request."""
        self.owners_changed = False
        for world in self.worlds.values():
            world.obstacle = None
            self.cable_is_back(world.name)
        for _ in range(60):
            for host in HOSTS:
                self.host_hears_of_the_newest_order(host)
                self.host_does_what_it_had_heard(host)
                self.fenced_workers_end(host)
                self.report_arrives(host)
            self.time_passes(1.0)
            self.supervisor_decides(["a", "b", "c", "a"])
            self.only_one_generation_lives()
            if self.record.state is RunState.RUNNING:
                for world in self.worlds.values():
                    for place in sorted(world.living):
                        world.end(place, WorkerEnd(0, "exited"))
        assert self.record.state.has_ended


AnyRun.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyRun = AnyRun.TestCase
