"""Starts a run and owns it: a thread of this process supervises the run until none of its processes is left.

The owner is this process. While it lives, it renews the leases of the run's workers and holds the run's lock, which
workers on this machine watch. When it ends, for whatever reason, the workers end as well. The exception is a run with
`survives_s`: if the process exits cleanly, it leaves the run with longer leases, for another process to take over.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ignite_tf_magic.errors import ConfigError, IgniteTfError, LaunchError, MirrorFailed
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.lock import HeldLock, leave
from ignite_tf_magic.launch.parcels import Parcel
from ignite_tf_magic.launch.watch import Contact, HostView, HostWatch
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.runs import spec as specs
from ignite_tf_magic.runs.decisions import STOP_ASKED, cause_of_end
from ignite_tf_magic.runs.directory import CREDENTIALS, RunDirectory, create_directory, script_path
from ignite_tf_magic.runs.handles.run import Run, local_run
from ignite_tf_magic.runs.hosts.topology import ClusterSnapshot
from ignite_tf_magic.runs.logs.mirror_state import MirrorState, UnreadOutput, is_given_up, unread, workers
from ignite_tf_magic.runs.logs.mirrored_logs import MirroredLogs
from ignite_tf_magic.runs.orders import Order, Phase
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import (
    HostRecord,
    PastGeneration,
    RunRecord,
    RunSpec,
    WorkerRecord,
    this_process,
)
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.host_controller import HostController, HostPayload
from ignite_tf_magic.runs.supervision.host_pool import DirectHostPool
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.runs.supervision.run_tunnels import RunTunnels
from ignite_tf_magic.runs.supervision.supervisor import Planner, Supervisor
from ignite_tf_magic.runs.supervision.warm_hosts import WARM_HOSTS
from ignite_tf_magic.runs.task import GRACE_S
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.runs.warm import may_start_warm
from ignite_tf_magic.settings.options import ConnectOptions

_POLL_S = 0.02
_LAST_OUTPUT_S = 15.0
RESUMED = "it was resumed"
OWNER_EXITS = "the process that owned it has ended, as a notebook's kernel that is restarted does"
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All decisions made before a run starts.

    Attributes:
        spec: The request.
        plan: Placement of the first workers.
        script: Source of the script; None when a command runs instead.
        connect: How workers reach the cluster; only the credentials are used.
        name: The name part of the run's id.
        parcels: Bundles that other machines need.
        timeouts: Timeouts of the run.
        warm_s: How long the run's hosts keep processes ready for a similar run after this one has ended; 0 keeps none.
    """

    spec: RunSpec
    plan: Plan
    script: str | None
    connect: ConnectOptions = field(repr=False)
    name: str | None = None
    parcels: tuple[Parcel, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    warm_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunHooks:
    """Connections of a run to everything other than its hosts.

    Attributes:
        planner: Places the workers of later generations.
        snapshot: Returns the cluster's latest state.
        on_save: Called with every new record, in the supervisor's thread; must not block or raise.
        is_stop_asked: Returns whether a user elsewhere asked to stop the run.
        close: Called when the run has ended.
    """

    planner: Planner | None = None
    snapshot: Callable[[], ClusterSnapshot] | None = None
    on_save: Callable[[RunRecord], None] = lambda _: None
    is_stop_asked: Callable[[], bool] = lambda: False
    close: Callable[[], None] = lambda: None


def start_run(
    plan: RunPlan,
    runs_dir: Path,
    reach: Reach,
    hooks: Callable[[str], RunHooks] = lambda _: RunHooks(),
) -> Run:
    """Start the processes of a run; return when they run, or when the run is queued.

    This process owns the run from now on, and the run ends with it. Follow its output with `Run.follow`.

    Raises:
        ScriptError: The script is not Python; nothing was started.
        LaunchError: The workers could not be started; those that were started have been ended.
    """
    if plan.script is not None:
        specs.check_script(plan.script, plan.spec.script_name, plan.spec.python)
    directory = create_directory(runs_dir, plan.name or plan.spec.cache)
    owner = _RunOwner(plan, directory, reach, hooks(directory.run_id))
    owner.start()
    return local_run(directory, reach)


def resume_run(
    plan: RunPlan,
    record: RunRecord,
    directory: RunDirectory,
    reach: Reach,
    hooks: Callable[[str], RunHooks],
) -> Run:
    """Start the workers of an ended run again, for example after a failure; return at once.

    Workers of the run that are still alive are ended first. This process owns the run from now on.

    Raises:
        ConfigError: Another process owns it.
    """
    try:
        owner = _RunOwner(
            plan, directory, reach, hooks(directory.run_id), _reopened(record, plan, time.time())
        )
    except BlockingIOError as error:
        raise ConfigError(
            f"run {record.run_id} is still active: watch it with attach {record.run_id}"
        ) from error
    owner.start()
    return local_run(directory, reach)


def take_over_run(
    plan: RunPlan,
    record: RunRecord,
    directory: RunDirectory,
    reach: Reach,
    hooks: Callable[[str], RunHooks],
) -> Run:
    """Continue a run whose owner has exited, and whose workers may still run; return at once.

    This process owns the run from now on.

    Raises:
        BlockingIOError: Another process has taken it over.
        LaunchError: A host that has workers does not answer. If its workers were later taken for dead, they might still
            be alive. The run stays unchanged.
    """
    taken = replace(record, left_until=None, version=record.version + 1, **this_process())
    owner = _RunOwner(plan, directory, reach, hooks(directory.run_id), taken)
    try:
        _set_leases_back(record, reach, plan.timeouts.lease_s)
    except BaseException:
        owner.leave_again(record)
        raise
    owner.start()
    return local_run(directory, reach)


def _set_leases_back(record: RunRecord, reach: Reach, lease_s: float) -> None:
    """Shorten the leases to normal, so that they expire before the owner takes a silent host's workers for dead."""
    used = [host for host in record.hosts if host.name in record.order.hosts]
    with reach.visiting(used) as opened:
        failed = _errors(call_all(opened, lambda host: host.jobs_of(record.run_id)))
        if not failed:
            failed = _errors(call_all(opened, partial(_set_lease, record, lease_s)))
            if failed:
                rest_s = max((record.left_until or 0.0) - time.time(), lease_s)
                call_all(opened, partial(_set_lease, record, rest_s))
    if failed:
        raise LaunchError(
            f"run {record.run_id} is not taken over, because its workers may still run on "
            f"{', '.join(failed)}, which cannot be asked: {'; '.join(map(str, failed.values()))}. Attach "
            "again when that is fixed"
        )


def _set_lease(record: RunRecord, lease_s: float, host: Host) -> None:
    host.set_lease(record.run_id, record.generation, lease_s)


def _errors(answers: Mapping[str, object]) -> dict[str, IgniteTfError]:
    return {name: answer for name, answer in answers.items() if isinstance(answer, IgniteTfError)}


def _reopened(record: RunRecord, plan: RunPlan, now: float) -> RunRecord:
    """Return the record for a new start of an ended run; its earlier workers are in the past generations."""
    order = replace(record.order, phase=Phase.END, reason=RESUMED)
    past = record.past
    if record.workers and not (past and past[-1].generation == record.generation):
        cause = cause_of_end(record)
        past = (*past, PastGeneration(record.generation, tuple(w.host for w in record.workers), cause, now))
    return replace(
        record,
        spec=plan.spec,
        state=RunState.RESTARTING if record.generation else RunState.QUEUED,
        order=order,
        past=past,
        started_at=now,
        first_started_at=record.first_started_at or record.started_at,
        num_failures=0,
        ended_at=None,
        exit_code=None,
        failed_worker=None,
        end=None,
        reason=RESUMED,
        is_retryable=None,
        waiting_for=None,
        detached=False,
        supervisor="",
        version=record.version + 1,
        **this_process(),
    )


def first_record(plan: RunPlan, run_id: str, *, detached: bool) -> RunRecord:
    """Return the first record of a run."""
    seats = plan.plan.seats
    is_queued = plan.plan.insufficient_capacity is not None
    return RunRecord(
        run_id=run_id,
        spec=plan.spec,
        state=RunState.QUEUED if is_queued else RunState.STARTING,
        started_at=time.time(),
        workers=tuple(WorkerRecord(seat.worker, seat.host, seat.rows) for seat in seats),
        order=Order() if is_queued else Order(1, Phase.PREPARE, seats),
        hosts=plan.plan.hosts,
        topology=plan.plan.topology,
        owners=plan.plan.owners,
        waiting_for=plan.plan.insufficient_capacity,
        detached=detached,
        **this_process(),
    )


def payload_for(plan: RunPlan, host: HostRecord, directory: RunDirectory) -> HostPayload:
    """Return what a host needs before a worker can start there."""
    files = {} if plan.script is None else {script_path(plan.spec.script_name): plan.script}
    found = specs.credentials(plan.connect)
    if found:
        files[CREDENTIALS] = json.dumps(found)
    is_here, package = host.ssh is None, plan.spec.package and f"{{root}}/parcels/{plan.spec.package}"
    return HostPayload(
        files=files,
        parcels=tuple(p for p in plan.parcels if not is_here or p.digest != plan.spec.package),
        python_path=_own_path() if is_here else package,
        loopback=loopback.library() if is_here else package and loopback.path_in(package),
        owner_lock=str(directory.owner_lock) if is_here else "",
        is_here=is_here,
        has_credentials=bool(found),
        is_warm=plan.warm_s > 0 and plan.script is not None and may_start_warm(plan.script),
    )


class _RunOwner:
    """A run in its owner process: its lock, its hosts, and the thread that supervises it."""

    def __init__(
        self,
        plan: RunPlan,
        directory: RunDirectory,
        reach: Reach,
        hooks: RunHooks,
        record: RunRecord | None = None,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._reach = reach
        self._hooks = hooks
        self._opened = ExitStack()
        self._tunnels = self._opened.enter_context(RunTunnels()) if plan.spec.tunnel else None
        self._lock = HeldLock(directory.owner_lock)
        self._logs = MirroredLogs(directory)
        self._hosts: list[Host] = []
        self._controllers: list[tuple[HostRecord, HostController]] = []
        self._watches: list[HostWatch] = []
        self._here: set[str] = set()
        self._fault = "it never started"
        self._is_exiting = False
        self._pool = DirectHostPool(self._open_host)
        self._supervisor = Supervisor(
            record or first_record(plan, directory.run_id, detached=False),
            pool=self._pool,
            plan=hooks.planner or (lambda *_: plan.plan),
            store=self,
            timeouts=plan.timeouts,
            snapshot=hooks.snapshot,
            is_stop_asked=lambda: (
                self._is_exiting or directory.stop_request.exists() or hooks.is_stop_asked()
            ),
            why_stop=lambda: OWNER_EXITS if self._is_exiting else STOP_ASKED,
        )
        self._thread = threading.Thread(target=self._work, name=f"run-{directory.run_id}", daemon=True)

    def start(self) -> None:
        """Start supervising, and wait until all workers have been started.

        Raises:
            LaunchError: They could not be started; those that were started have been ended.
        """
        self._supervisor.record.write(self._directory)
        _owners.add(self)
        atexit.unregister(_let_go_of_all)
        # Handlers run in reverse order of registration, so this one runs before links are closed.
        atexit.register(_let_go_of_all)
        self._thread.start()
        try:
            self._await_start()
        except BaseException:  # for example an interrupt: the caller does not get the run's id
            self._directory.stop_request.touch(mode=0o600)
            raise

    def _await_start(self) -> None:
        while (record := self._supervisor.record).state is RunState.STARTING and record.generation == 1:
            if all(worker.pid is not None or worker.exit_code is not None for worker in record.workers):
                return
            if not self._thread.is_alive():
                raise LaunchError(f"the supervision of run {record.run_id} has ended: {self._fault}")
            time.sleep(_POLL_S)
        if record.is_retryable is False and record.generation == 1:
            self._thread.join()
            record = self._supervisor.record
            raise LaunchError(f"{record.reason}. No worker runs; the run was {record.run_id}")

    def _open_host(self, host: HostRecord, on_change: Callable[[], None]) -> tuple[HostController, HostWatch]:
        opened = self._opened.enter_context(self._reach.open(host))
        watch = HostWatch(opened, self._directory.run_id, logs={}, sink=self._logs, on_change=on_change)
        if self._tunnels is not None:
            self._tunnels.add(opened)
        self._hosts.append(opened)
        self._watches.append(watch)
        controller = HostController(
            opened,
            watch,
            payload=payload_for(self._plan, host, self._directory),
            timeouts=self._plan.timeouts,
            on_log=partial(self._read_log, host, opened, watch),
            tunnels=self._tunnels,
        )
        self._controllers.append((host, controller))
        return controller, watch

    def _stay_warm(self) -> None:
        """Park processes on the hosts for the next run, after this run has ended."""
        if self._plan.warm_s and not self._is_exiting:
            for host, controller in self._controllers:
                WARM_HOSTS.park(self._reach, host, controller.warm_jobs, self._plan.warm_s)

    def _is_here(self, host: HostRecord, opened: Host) -> bool:
        """Return whether the host writes into this same directory, even if it was reached over SSH."""
        mark = self._directory.owner_lock.name, str(os.getpid()).encode()
        if host.ssh is None or opened.read(self._directory.run_id, mark[0]) == mark[1]:
            self._here.add(host.name)
        return host.name in self._here

    def _read_log(self, host: HostRecord, opened: Host, watch: HostWatch, log: str) -> None:
        if self._is_here(host, opened):
            return
        with suppress(MirrorFailed):  # no more output is copied, but the run continues
            if (offset := self._logs.add(host.name, log)) is not None:
                watch.add_log(log, offset)

    def _await_logs(self) -> None:
        """Wait until all readable output has been copied; wait a limited time for hosts that were lost recently."""
        ended_at = time.monotonic()
        deadline = ended_at + _LAST_OUTPUT_S
        while (
            not all(_has_read_all(each, ended_at) for each in self._watches) and time.monotonic() < deadline
        ):
            time.sleep(_POLL_S)

    def _note_unread(self) -> None:
        """Record which output could not be read, for readers that follow it to its end."""
        lost = [
            each
            for watch in self._watches
            if watch.view.host not in self._here
            for each in self._unread(watch.view)
        ]
        if lost:
            MirrorState(is_complete=True, unreachable=tuple(lost)).write(self._directory)

    def _unread(self, view: HostView) -> Iterator[UnreadOutput]:
        lost = list(unread(view, partial(self._logs.offset, view.host)))
        yield from lost
        told = {each.log for each in lost}
        for job in workers(view):
            if job.log_bytes and job.log not in told and self._logs.offset(view.host, job.log) is None:
                reason = "its link was lost before this log could be asked for"
                yield UnreadOutput(view.host, job.log, job.log_bytes, not job.has_ended, reason)

    def save(self, record: RunRecord) -> None:
        """Write the newest record; before the last one, wait until all readable output has been copied."""
        if record.state.has_ended:
            self._await_logs()
            self._logs.end()
            self._note_unread()
            self._directory.credentials.unlink(missing_ok=True)
        self._write(record)
        self._hooks.on_save(record)

    def _write(self, record: RunRecord) -> None:
        """Write the record. If that fails, as on a full disk, the run continues; only the last record is retried."""
        deadline = time.monotonic() + (_LAST_OUTPUT_S if record.state.has_ended else 0.0)
        while True:
            try:
                record.write(self._directory)
                return
            except OSError:
                if time.monotonic() > deadline:
                    if record.state.has_ended:
                        raise
                    return
            time.sleep(_POLL_S)

    def _work(self) -> None:
        try:
            with self._lock, self._opened:
                self._supervise()
        finally:
            _owners.discard(self)  # last, after all is closed: at exit, this process waits for its owners

    def _supervise(self) -> None:
        try:
            self._supervisor.run()
            if not self._supervisor.record.state.has_ended:
                self._leave_behind()
            else:
                self._stay_warm()
        except BaseException as error:
            self._fault = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._pool.close()
            self._hooks.close()

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process owns the run; a forked child does not own its parent's runs."""
        return os.getpid() == self._supervisor.record.owner_pid

    def begin_to_let_go(self) -> None:
        """End the run, or detach from it if it may outlive this process. Returns at once."""
        if self._plan.spec.survives_s and not self._directory.stop_request.exists():
            self._supervisor.leave()
        else:
            self._is_exiting = True  # not a stop file, which could not be written to a full disk

    def await_end(self, deadline: float) -> None:
        """Wait until this process no longer supervises the run, at most until the deadline."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _leave_behind(self) -> None:
        """Leave the run to another process: record this and extend the leases. Jupyter allows 2.5 s for this."""
        record, survives_s = self._supervisor.record, self._plan.spec.survives_s
        until = time.time() + survives_s
        leave(self._directory.owner_lock, until)
        self.save(replace(record, left_until=until, version=record.version + 1))
        call_all(self._hosts, partial(_set_lease, record, survives_s))

    def leave_again(self, record: RunRecord) -> None:
        """Give back a run that could not be taken over."""
        leave(self._directory.owner_lock, record.left_until or 0.0)
        self._lock.release()
        self._hooks.close()


_owners: set[_RunOwner] = set()


def begin_to_let_go_of_runs() -> None:
    """Begin to end this process's runs, or to detach from them. Returns at once; at exit, the process waits."""
    for owner in _owners_here():
        owner.begin_to_let_go()


def _let_go_of_all() -> None:
    """End or detach from all of this process's runs and wait for them together: kernels get only seconds to exit."""
    deadline = time.monotonic() + GRACE_S + 2.0
    mine = _owners_here()
    begin_to_let_go_of_runs()
    for owner in mine:
        owner.await_end(deadline)


def _owners_here() -> list[_RunOwner]:
    return [owner for owner in list(_owners) if owner.is_of_this_process]


def _has_read_all(watch: HostWatch, ended_at: float) -> bool:
    view, offsets = watch.view, watch.offsets
    if view.heard_at is None or view.sink_error or is_given_up(view, ended_at):
        return True
    if view.contact is not Contact.REACHABLE and not all(job.has_ended for job in view.jobs.values()):
        return False  # it may have more jobs or output than we know of
    return all(offsets[job.log] >= job.log_bytes for job in view.jobs.values() if job.log in offsets)


def _own_path() -> str | None:
    """Return the PYTHONPATH with which workers on this machine find this package if it is not installed."""
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    installed = _PACKAGE_ROOT.name in ("site-packages", "dist-packages")
    return os.pathsep.join(known if installed else [*known, str(_PACKAGE_ROOT)]) or None
