"""The decisions of a run's supervisor. Pure.

From the record, the hosts' reports and the time, the functions compute the next record.

The functions are idempotent: the same facts may be passed any number of times. Another host may become the supervisor
after any observation, so everything that matters is in the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ignite_tf_magic.runs import verdicts
from ignite_tf_magic.runs.orders import NO_ROOM, PORT_TAKEN, HostReport, Order, Phase, TaskSlot, WorkerEnd
from ignite_tf_magic.runs.record import PastGeneration, RunRecord, WorkerRecord
from ignite_tf_magic.runs.states import RunEvent, RunState
from ignite_tf_magic.runs.timeouts import Timeouts

EXIT_DEADLINE, EXIT_STOPPED, EXIT_NOT_STARTED = 124, 143, 126
STOP_ASKED = "it was asked to stop"
_MAX_PORT_TRIES = 3
_PORT_BACKOFF_S = 0.1
_BUSY = (RunState.STARTING, RunState.RUNNING)
_ENDING = (RunState.FAILING, RunState.RESTARTING, RunState.FINISHING, RunState.STOPPING)

Reports = Mapping[str, HostReport]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a supervisor knows in addition to the record and the reports.

    Attributes:
        time: Seconds since the epoch.
        state_age_s: How long the run has been in its state, on the supervisor's own clock.
        stop_asked: Whether a user asked to stop the run.
        owners_changed: Whether the cache's primary owners differ from the order's and have stopped changing.
        may_lead: Whether this side of the cluster may start workers.
        owners_changing: Whether the owners differ from the order's but may still change.
        why_stop: Why the run is to be stopped.
    """

    time: float
    state_age_s: float = 0.0
    stop_asked: bool = False
    owners_changed: bool = False
    may_lead: bool = True
    owners_changing: bool = False
    why_stop: str = STOP_ASKED


def decide(record: RunRecord, reports: Reports, observation: Observation, timeouts: Timeouts) -> RunRecord:
    """Return the next record, or the same one if nothing changes."""
    if record.state.has_ended:
        return record
    record = _observe(record, reports, observation)
    wants_stop = observation.stop_asked or any(report.stop_asked for report in reports.values())
    if wants_stop and record.state in (*_BUSY, RunState.QUEUED, RunState.FAILING, RunState.RESTARTING):
        return _end(record, RunEvent.STOP_ASKED, observation.why_stop)
    if record.state is RunState.QUEUED and _is_over_time(record, observation):
        return _too_late(record, _over_time(record))
    if record.state in _BUSY:
        return _while_busy(record, reports, observation, timeouts)
    if record.state in _ENDING:
        return _while_ending(record, reports, observation, timeouts)
    return record


def needs_plan(record: RunRecord, reports: Reports, observation: Observation, timeouts: Timeouts) -> bool:
    """Return whether it is time to assign partitions and hosts for another generation."""
    if record.state is RunState.QUEUED:
        return True
    if record.state is not RunState.RESTARTING or not observation.may_lead:
        return False
    wait_s = _PORT_BACKOFF_S if _took_a_port(record) else timeouts.backoff_s(record.num_failures)
    is_due = record.num_failures == 0 or observation.state_age_s >= wait_s
    return is_due and all_gone(record, reports, timeouts)


def next_generation(record: RunRecord, seats: tuple[TaskSlot, ...]) -> RunRecord:
    """Order another generation with these task slots."""
    event = RunEvent.ROOM_FOUND if record.state is RunState.QUEUED else RunEvent.STARTED_AGAIN
    order = Order(record.generation + 1, Phase.PREPARE, seats)
    workers = tuple(WorkerRecord(seat.worker, seat.host, seat.rows) for seat in seats)
    return record.happened(
        event, order=order, workers=workers, waiting_for=None, failed_worker=None, end=None, is_retryable=None
    )


def give_up(record: RunRecord, reason: str) -> RunRecord:
    """Fail a run that cannot be started again."""
    return _too_late(record, reason)


def mark_stopped(record: RunRecord, now: float) -> RunRecord:
    """End a run that was stopped while it had no supervisor, and that has no processes left."""
    if record.state.has_ended:
        return record
    if record.state is RunState.FINISHING:
        return replace(_succeeded(record, RunEvent.ALL_GONE, now), version=record.version + 1)
    if record.state is not RunState.STOPPING:
        record = record.happened(RunEvent.STOP_ASKED)
    ended = record.happened(RunEvent.ALL_GONE, ended_at=now, exit_code=EXIT_STOPPED)
    return replace(ended, version=ended.version + 1)


def all_gone(record: RunRecord, reports: Reports, timeouts: Timeouts) -> bool:
    """Return whether no worker of any generation can be alive: its host reports its end, or its lease has expired.

    For earlier generations this was established before the order was made.
    """
    was_started = bool(record.order.addresses)
    return not was_started or all(
        name in reports and _is_empty(reports[name], record.generation, timeouts)
        for name in record.order.hosts
    )


def _is_empty(report: HostReport, generation: int, timeouts: Timeouts) -> bool:
    # A host with no workers now may be starting one at this moment, unless its fence is past the generation.
    is_closed = report.fence > generation and not report.living
    return is_closed or report.silent_s > timeouts.dead_after_s


# Reports of the hosts


def _observe(record: RunRecord, reports: Reports, observation: Observation) -> RunRecord:
    for worker in record.workers:
        report = reports.get(worker.host)
        if report is None or report.generation != record.generation or worker.exit_code is not None:
            continue
        seen = replace(
            worker,
            pid=report.pids.get(worker.worker, worker.pid),
            respawns=report.respawns.get(worker.worker, worker.respawns),
        )
        if worker.worker in report.up and worker.joined_at is None:
            seen = replace(seen, joined_at=observation.time)
        phase = report.phases.get(worker.worker, worker.phase)
        if phase != worker.phase:
            seen = replace(seen, phase=phase, phase_at=observation.time)
        if (end := report.ends.get(worker.worker)) is not None:
            seen = _ended(seen, end, asked=record.order.phase is Phase.END)
        if seen != worker:
            record = record.with_worker(seen)
    return record


def _ended(worker: WorkerRecord, end: WorkerEnd, *, asked: bool) -> WorkerRecord:
    code = -9 if end.code is None else end.code
    exit_code, signal_name = verdicts.normal_exit(code)
    by_itself = end.exception is not None and exit_code != 0 and not end.asked_to_end
    was_ended = asked or end.reason not in ("exited", "agent_lost", verdicts.TOO_MUCH_MEMORY, None)
    return replace(
        worker,
        exit_code=exit_code,
        signal=signal_name,
        ended_at=end.ended_at,
        ended_by_owner=was_ended and not by_itself and exit_code != 0,
    )


def _ends(record: RunRecord, reports: Reports) -> dict[int, WorkerEnd]:
    found = {}
    for worker in record.workers:
        report = reports.get(worker.host)
        if report and report.generation == record.generation and worker.worker in report.ends:
            found[worker.worker] = report.ends[worker.worker]
    return found


# While workers run or should run


def _while_busy(
    record: RunRecord, reports: Reports, observation: Observation, timeouts: Timeouts
) -> RunRecord:
    if record.workers and all(worker.exit_code == 0 for worker in record.workers):
        return _succeeded(record, RunEvent.ALL_SUCCEEDED, observation.time)
    if has_done_its_work(record):
        return _while_others_finish(record, observation)
    if any(worker.exit_code for worker in record.workers):
        return _end(record, RunEvent.WORKER_FAILED)
    if lost := _lost_host(record, reports, timeouts):
        return _end(
            record,
            RunEvent.HOST_LOST,
            f"host {lost} has not answered for {reports[lost].silent_s:.0f} s; the lease of its workers "
            "has expired",
            is_retryable=True,
            failed_worker=record.order.on(lost)[0].worker,
            exit_code=verdicts.EXIT_HOST_LOST,
        )
    for name in record.order.hosts:
        report = reports.get(name)
        if report and report.error and report.generation == record.generation:
            return _end(
                record,
                RunEvent.WORKER_FAILED,
                f"{name}: {report.error.message}",
                is_retryable=report.error.is_retryable,
                failed_worker=record.order.on(name)[0].worker,
                exit_code=EXIT_NOT_STARTED,
            )
    if _is_over_time(record, observation):
        return _too_late(record, _over_time(record))
    if observation.owners_changed and record.spec.restarts_on_rebalance:
        reason = "other nodes have become the primary owners of the cache's partitions"
        return _end(record, RunEvent.OWNERS_CHANGED, reason)
    waiting_for = _silent_hosts(record, reports)
    if waiting_for is None and observation.owners_changing and record.spec.restarts_on_rebalance:
        waiting_for = "the primary owners of the cache's partitions are changing"
    if waiting_for is None and record.state is RunState.RUNNING:
        waiting_for = _not_joined(record, observation)
    if waiting_for != record.waiting_for:
        record = replace(record, waiting_for=waiting_for)
    if record.state is RunState.STARTING:
        return _while_starting(record, reports, observation)
    return record


def _succeeded(record: RunRecord, event: RunEvent, now: float) -> RunRecord:
    reason = None if record.state is RunState.FINISHING else record.reason
    return record.happened(event, ended_at=now, exit_code=0, reason=reason, waiting_for=None)


def has_done_its_work(record: RunRecord) -> bool:
    """Return whether all tasks whose success decides the run have succeeded."""
    deciding = [worker for worker in record.workers if record.role(worker.worker).decides]
    return bool(deciding) and all(worker.exit_code == 0 for worker in deciding)


def _while_others_finish(record: RunRecord, observation: Observation) -> RunRecord:
    """End servers once the script has succeeded, but give an evaluator time to evaluate the last checkpoints."""
    ended_at = max(each.ended_at or 0.0 for each in record.workers if record.role(each.worker).decides)
    evaluates = any(
        each.exit_code is None and record.role(each.worker).job == "evaluator" for each in record.workers
    )
    if evaluates and observation.time - ended_at <= record.spec.finish_timeout_s:
        return replace(record, waiting_for="the evaluator, which may finish its work")
    return _end(record, RunEvent.SCRIPT_SUCCEEDED, "the script has succeeded")


def _lost_host(record: RunRecord, reports: Reports, timeouts: Timeouts) -> str | None:
    for worker in record.workers:
        report = reports.get(worker.host)
        if worker.exit_code is None and report and report.silent_s > timeouts.dead_after_s:
            return worker.host
    return None


def _silent_hosts(record: RunRecord, reports: Reports) -> str | None:
    silent = [name for name in record.order.hosts if name in reports and not reports[name].reachable]
    return f"{', '.join(silent)}: out of reach, trying to reconnect" if silent else None


def _while_starting(record: RunRecord, reports: Reports, observation: Observation) -> RunRecord:
    mine = {name: reports[name] for name in record.order.hosts if name in reports}
    mine = {name: report for name, report in mine.items() if report.generation == record.generation}
    if record.order.phase is Phase.PREPARE:
        if addresses := _addresses(record.order, mine):
            return replace(record, order=replace(record.order, phase=Phase.RUN, addresses=addresses))
    elif not _not_started(record):
        return record.happened(RunEvent.ALL_STARTED)
    timeout_s = record.spec.start_timeout_s
    if timeout_s is not None and observation.state_age_s > timeout_s:
        missing = _not_started(record) or list(record.workers)
        return _too_late(record, _describe_late(record, mine, missing, timeout_s), missing[0].worker)
    return record


def _addresses(order: Order, reports: Reports) -> tuple[str, ...]:
    """Return each worker's TensorFlow address, or an empty tuple until all hosts have reported theirs."""
    found = []
    for seat in order.seats:
        report = reports.get(seat.host)
        if report is None or seat.worker not in report.ports or report.address is None:
            return ()
        host = f"[{report.address}]" if ":" in report.address else report.address
        found.append(f"{host}:{report.ports[seat.worker]}")
    return tuple(found)


def _not_started(record: RunRecord) -> list[WorkerRecord]:
    return [worker for worker in record.workers if worker.pid is None and worker.exit_code is None]


def _describe_late(record: RunRecord, reports: Reports, missing: list[WorkerRecord], timeout_s: float) -> str:
    if record.order.phase is not Phase.RUN:
        late = [name for name in record.order.hosts if not reports.get(name) or not reports[name].ports]
        what = f"not prepared within {timeout_s:g} s: {', '.join(late)}"
    else:
        late = [f"{record.role(worker.worker).name} on {worker.host}" for worker in missing]
        what = f"not started within {timeout_s:g} s: {', '.join(late)}"
    return f"{what}; find the cause with: ignite-tf doctor"


def _not_joined(record: RunRecord, observation: Observation) -> str | None:
    """Return a message about workers that others have waited for too long, or None.

    None if all workers have joined, or none has. A running process may read or compute for a long time before it joins,
    and nothing shows whether it ever will. So the run only reports the worker; the deadline ends the run at the latest.
    """
    alive = [
        worker
        for worker in record.workers
        if worker.exit_code is None and record.role(worker.worker).must_join
    ]
    joined = [worker for worker in alive if worker.joined_at is not None]
    missing = [worker.worker for worker in alive if worker.joined_at is None]
    timeout_s, began = (
        record.spec.start_timeout_s,
        min((each.joined_at or 0.0 for each in joined), default=0.0),
    )
    if not joined or not missing or timeout_s is None or observation.time - began <= timeout_s:
        return None
    there = ", ".join(str(each.worker) for each in joined)
    return (
        f"worker {', '.join(map(str, missing))} runs, but has not joined within {timeout_s:g} s; worker "
        f"{there} waits for it if they train together. Workers join when their TensorFlow servers start: "
        "import keras, or call ignite_tf_magic.strategy() in a loop of your own; the servers start with "
        "TensorFlow's first operation. If that never happens, stop the run. --deadline ends runs "
        "automatically; --start-timeout sets the time until this warning"
    )


def _is_over_time(record: RunRecord, observation: Observation) -> bool:
    return (
        record.spec.deadline_s is not None and observation.time - record.started_at > record.spec.deadline_s
    )


def _over_time(record: RunRecord) -> str:
    return f"it exceeded its deadline of {record.spec.deadline_s:g} s"


# While workers are being ended


def _end(
    record: RunRecord,
    event: RunEvent,
    reason: str | None = None,
    *,
    is_retryable: bool | None = None,
    failed_worker: int | None = None,
    exit_code: int | None = None,
) -> RunRecord:
    order = replace(record.order, phase=Phase.END, reason=reason or event.value)
    changes = {"is_retryable": is_retryable, "failed_worker": failed_worker, "exit_code": exit_code}
    return record.happened(event, order=order, reason=reason, waiting_for=None, **changes)


def _too_late(record: RunRecord, reason: str, failed_worker: int | None = None) -> RunRecord:
    return _end(
        record,
        RunEvent.DEADLINE_PASSED,
        reason,
        is_retryable=False,
        failed_worker=failed_worker,
        exit_code=EXIT_DEADLINE,
    )


def _while_ending(
    record: RunRecord, reports: Reports, observation: Observation, timeouts: Timeouts
) -> RunRecord:
    if record.state is RunState.RESTARTING and _is_over_time(record, observation):
        return _too_late(record, _over_time(record))
    if not all_gone(record, reports, timeouts):
        return record
    if record.state is RunState.STOPPING:
        reason = None if record.reason == STOP_ASKED else record.reason
        return record.happened(
            RunEvent.ALL_GONE,
            ended_at=observation.time,
            exit_code=EXIT_STOPPED,
            reason=reason,
            waiting_for=None,
        )
    if record.state is RunState.FINISHING:
        return _succeeded(record, RunEvent.ALL_GONE, observation.time)
    if record.state is RunState.FAILING:
        return _after_failure(record, reports, observation)
    return _with_past(record, observation)


def _after_failure(record: RunRecord, reports: Reports, observation: Observation) -> RunRecord:
    ends = _ends(record, reports)
    first = verdicts.first_failing(record.workers, ends)
    if record.failed_worker is None and first is not None:
        record = replace(record, failed_worker=first.worker, end=ends.get(first.worker))
    is_retryable = record.is_retryable
    if is_retryable is None:
        is_retryable = first is None or verdicts.is_retryable(first, ends.get(first.worker))
    obstacles = _obstacles(record, reports)
    found_a_port_taken = PORT_TAKEN in obstacles or verdicts.took_a_port(ends)
    # Another run took the room first. A run that waits for room keeps waiting.
    was_late = record.spec.waits_for_room and bool(obstacles & NO_ROOM)
    tries = max(record.spec.max_restarts, _MAX_PORT_TRIES - 1 if found_a_port_taken else 0)
    if is_retryable and (was_late or record.num_failures < tries) and not _is_over_time(record, observation):
        again = record.happened(
            RunEvent.WORTH_A_RETRY,
            num_failures=record.num_failures + (not was_late),
            reason=cause_of_end(record),
            exit_code=None,
        )
        return _with_past(again, observation)
    exit_code = record.exit_code or (first and first.exit_code) or EXIT_NOT_STARTED
    return record.happened(
        RunEvent.ALL_GONE, ended_at=observation.time, exit_code=exit_code, waiting_for=None
    )


def _obstacles(record: RunRecord, reports: Reports) -> set[str]:
    """Return the kinds of errors that this generation met on its hosts."""
    mine = (reports[name] for name in record.order.hosts if name in reports)
    return {report.error.kind for report in mine if report.error and report.generation == record.generation}


def cause_of_end(record: RunRecord) -> str:
    """Return why a generation of workers has ended or is being ended, as text."""
    if record.state is RunState.STOPPED:
        return record.reason or "it was stopped"
    if not record.state.has_ended and record.state is not RunState.FAILING:
        return "its owner had ended"
    if record.reason is not None or record.failed_worker is None:
        return record.reason or "something outside the run ended its workers"
    worker, name = record.workers[record.failed_worker], record.role(record.failed_worker).name
    if _took_a_port(record):
        return f"{name} on {worker.host} could not use its port, which is taken"
    told = verdicts.describe_end(worker.exit_code or 0, record.end)
    return f"{name} on {worker.host}: {told}"


def _took_a_port(record: RunRecord) -> bool:
    return record.end is not None and verdicts.took_a_port({0: record.end})


def _with_past(record: RunRecord, observation: Observation) -> RunRecord:
    """Add the ended generation to the past, once."""
    is_there = bool(record.past) and record.past[-1].generation == record.generation
    if is_there or not record.workers:
        return record
    hosts = tuple(worker.host for worker in record.workers)
    ended = PastGeneration(record.generation, hosts, record.reason or record.order.reason, observation.time)
    return replace(record, past=(*record.past, ended))
