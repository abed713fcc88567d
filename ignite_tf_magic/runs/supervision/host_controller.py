"""Makes a host carry out a run's orders, and reports the host's status.

All runs use it. For an attached run, the notebook's process has one controller per host and reaches the host over SSH.
For a detached run, each host's reconciler has one controller for its own machine.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ignite_tf_magic.errors import HostError, HostRefused, HostUnreachable, LaunchError
from ignite_tf_magic.launch.hosts import MAX_PAYLOAD_BYTES, Host
from ignite_tf_magic.launch.jobs import HostFacts, Job, JobStatus, Renewal
from ignite_tf_magic.launch.log_files import last_lines
from ignite_tf_magic.launch.parcels import Parcel
from ignite_tf_magic.launch.watch import Contact, HostView, HostWatch
from ignite_tf_magic.runs.directory import (
    CREDENTIALS,
    assignment_name,
    exit_name,
    log_name,
    phase_name,
    task_name,
)
from ignite_tf_magic.runs.hosts.capacity import look, needs_capacity
from ignite_tf_magic.runs.loopback import may_be_loaded
from ignite_tf_magic.runs.orders import (
    NO_ROOM,
    PORT_TAKEN,
    Capacity,
    HostProblem,
    HostReport,
    Phase,
    TaskSlot,
    WorkerEnd,
    job_name,
    place_of,
)
from ignite_tf_magic.runs.phases import PHASES, TRAINING
from ignite_tf_magic.runs.record import HostRecord, RunRecord
from ignite_tf_magic.runs.spec import assignment, worker_job, worker_task
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.run_tunnels import RunTunnels
from ignite_tf_magic.runs.task import ExitReport
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.runs.warm import early_program
from ignite_tf_magic.settings.options import Endpoint

LOOPBACK = "127.0.0.1"
NUM_LAST_LINES = 60  # includes a traceback, which is removed before the lines are shown
_TAIL_BYTES = 8192
_TRACEBACK_CHARS = 16_000
_SOON_S, _LATER_S = 60.0, 2.0  # a server that has not come up after the first time most likely never will
_PHASES_SOON_S, _PHASES_LATER_S = 0.3, 5.0
_MOST_PHASE_BYTES = 64
_ROOM_S = 1.0
_WAITING = (RunState.QUEUED, RunState.RESTARTING)
_NO_PROGRAM = (
    ". Name the interpreter: --python PATH, or python in ignite-tf.toml; ignite-tf doctor looks at all"
)
# Refusals that may not be repeated at the next attempt.
_PASSING_KINDS = {"disk_full", PORT_TAKEN, "older_alive", "stale_generation"}


@dataclass(frozen=True, slots=True)
class HostPayload:
    """What a host needs in addition to its orders.

    Attributes:
        files: Content of files, by their path in the run's directory on the host.
        parcels: Bundles that must be on the host.
        python_path: Where workers find this package if their interpreter does not have it.
        loopback: Path on the host of the library that keeps workers' ports private to their host; None for none.
        owner_lock: Lock of the run's owner, if the owner is on the same machine.
        is_here: Whether the host is the machine on which the run was started.
        has_credentials: Whether the run's directory contains credentials for the workers.
        is_warm: Whether workers may use processes that were parked on the host after an earlier run.
    """

    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    parcels: tuple[Parcel, ...] = ()
    python_path: str | None = None
    loopback: str | None = None
    owner_lock: str = ""
    is_here: bool = False
    has_credentials: bool = False
    is_warm: bool = False


class HostController:
    """Controls one host of one run. Not thread-safe: only one thread may call it.

    Args:
        host: Connection to the host; its creator closes it.
        watch: Polls the host for the run.
        payload: Data to copy to the host before the first worker starts.
        on_log: Called with the log of each worker that was started or found running; called again if it raised.
        proof: Returns a reading of the host's clock from the time when the host was last known to be allowed workers.
            Their leases count from then, and the provider of `proof` renews them. With None, the controller renews
            them, because the owner is this process.
        tunnels: Forwarded ports to tasks on other hosts, for a run with --tunnel.
    """

    def __init__(
        self,
        host: Host,
        watch: HostWatch,
        *,
        payload: HostPayload,
        timeouts: Timeouts,
        on_log: Callable[[str], None],
        proof: Callable[[], float | None] | None = None,
        tunnels: RunTunnels | None = None,
    ) -> None:
        self._host = host
        self._watch = watch
        self._payload = payload
        self._timeouts = timeouts
        self._on_log = on_log
        self._proof = proof
        self._tunnels = tunnels
        self._room: Capacity | None = None
        self._room_asked_at = float("-inf")
        self._carried = self._has_left = False
        self._copied_version = 0
        self._view = watch.view
        self._reserved: tuple[int, ...] = ()
        self._begin(0)

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._address: str | None = None  # depends on the other hosts of the order
        self._ports: dict[int, int] = {}
        self._up: set[int] = set()
        self._ends: dict[int, WorkerEnd] = {}
        self._last_lines: dict[int, str] = {}
        self._began_at = self._knocked_at = time.monotonic()
        self._phases: dict[int, str] = {}
        self._phases_read_at = float("-inf")
        self._respawns: dict[int, int] = {}
        self._started: set[int] = set()
        self._jobs: list[Job] = []
        self._known_at: dict[int, float] = {}
        self._error: HostProblem | None = None

    def reconcile(self, record: RunRecord) -> HostReport:
        """Bring the host closer to the state in the order, and return its report. Blocks while the host answers.

        It may be called at any time and any number of times.
        """
        if record.generation != self._generation:
            self._begin(record.generation)
            if self._proof is None and record.generation:
                self._watch.set_renewal(Renewal(record.generation, self._timeouts.lease_s))
        self._view = self._watch.view
        if self._view.contact is Contact.UNREACHABLE and self._view.heard_at is not None:
            return self._report(record)  # the watch reconnects
        try:
            self._act(record)
            self._look(record)
            self._look_for_room(record)
            self._copy(record)
        except HostRefused as error:
            # Without --wait, a first start that does not fit fails at once.
            may_wait = record.spec.waits_for_room or record.generation > 1
            is_retryable = error.kind in _PASSING_KINDS or (error.kind in NO_ROOM and may_wait)
            advice = _NO_PROGRAM if error.kind == "no_program" else ""
            self._error = HostProblem(error.kind, f"{error}{advice}", is_retryable=is_retryable)
        except HostError as error:
            if self._watch.view.heard_at is None:  # a host that was reached before may be reached again
                is_retryable = isinstance(error, HostUnreachable)
                kind = "unreachable" if is_retryable else type(error).__name__
                self._error = HostProblem(kind, str(error), is_retryable=is_retryable)
        except LaunchError as error:
            self._error = HostProblem(type(error).__name__, str(error), is_retryable=False)
        return self._report(record)

    def _act(self, record: RunRecord) -> None:
        order = record.order
        if record.state.has_ended:
            self._leave(record)
        elif order.phase is Phase.END:
            self._end(record)
        elif order.phase is not Phase.NONE and self._error is None:
            seats = order.on(self._host.name)
            if self._watch.view.fence < order.generation:
                self._host.fence(record.run_id, order.generation)
            if seats and not self._ports:
                self._prepare(record, seats)
            # Start only once the watch has seen the new fence: then its silence shows how long leases can last.
            is_allowed = self._proof is None or self._proof() is not None
            if order.phase is Phase.RUN and is_allowed and self._watch.view.fence >= order.generation:
                if self._tunnels is not None:  # before workers start, and again after a lost link
                    self._tunnels.lead(record, self._host.name)
                self._start(record, seats)

    # Before workers start

    def _prepare(self, record: RunRecord, seats: tuple[TaskSlot, ...]) -> None:
        if not self._carried:
            self._carry(record.run_id)
        self._address = self._address or self._find_address(record)
        if record.spec.tunnel:
            self._check_privacy(record)
        if record.order.phase is Phase.PREPARE:
            self._free_ports()
            self._reserved = self._reserve(record, len(seats))
            self._ports = {seat.worker: port for seat, port in zip(seats, self._reserved, strict=True)}
        else:  # another process has prepared this host
            addresses = [Endpoint.parse(record.order.addresses[seat.worker]) for seat in seats]
            self._ports = {seat.worker: each.port for seat, each in zip(seats, addresses, strict=True)}

    def _reserve(self, record: RunRecord, count: int) -> tuple[int, ...]:
        if self._tunnels is not None:
            return self._tunnels.reserve(record, self._host.name, count)
        return self._host.reserve_ports(count, record.spec.port_range)

    def _check_privacy(self, record: RunRecord) -> None:
        """Check that a host can keep its workers' ports private, for a run that requires it.

        Raises:
            HostRefused: It cannot; the message says what is missing.
        """
        if self._tunnels is None:
            raise HostRefused(
                self._host.name,
                "no_tunnel",
                "--tunnel needs an owner process, so it cannot be combined with --detach",
            )
        if self._preload(self._root(record)) is None:
            facts = self._facts
            raise HostRefused(
                self._host.name,
                "no_tunnel",
                "the library that closes ports of workers to other machines cannot be loaded there "
                f"({facts.platform}, {facts.machine}): --tunnel needs Linux, the processor of this "
                "machine, a C compiler where this package was installed, and a root without spaces and "
                "colons",
            )

    def _free_ports(self) -> None:
        """Release reserved ports: shims now hold those of their workers."""
        if self._reserved:
            self._host.unreserve_ports(self._reserved)
            self._reserved = ()

    def _carry(self, run_id: str) -> None:
        parcels = self._payload.parcels
        have = self._host.has_parcels([parcel.digest for parcel in parcels]) if parcels else set()
        for parcel in parcels:
            if parcel.digest not in have:
                self._host.put_parcel(parcel)
        for path, text in self._payload.files.items():
            self._host.write(run_id, path, text.encode())
        self._carried = True

    def _find_address(self, record: RunRecord) -> str:
        """Return the address at which the order's other hosts reach this one."""
        me = record.host(self._host.name)
        others = [record.host(name) for name in record.order.hosts if name != me.name]
        if record.spec.tunnel or not others:
            return LOOPBACK
        if me.tf_address:
            return me.tf_address
        targets = [address for other in others if (address := address_of(other))]
        sources = self._host.route(targets) if targets else []
        outward = [source for source in sources if source and not _is_loopback(source)]
        facts = self._host.facts
        told = address_of(me) or (facts.ssh_address if facts else None)
        return outward[0] if outward else told or LOOPBACK

    # Workers

    def _start(self, record: RunRecord, seats: tuple[TaskSlot, ...]) -> None:
        for seat in seats:
            if seat.worker in self._started:
                continue
            if job_name(record.generation, seat.worker) not in self._watch.view.jobs:
                self._start_worker(record, seat)
            self._on_log(log_name(seat.worker, record.generation))
            self._started.add(seat.worker)  # after `on_log`, which may fail and is then called again
        self._free_ports()

    def _start_worker(self, record: RunRecord, seat: TaskSlot) -> None:
        payload, root = self._payload, self._root(record)
        task = worker_task(
            record,
            seat,
            root,
            has_credentials=payload.has_credentials,
            owner_lock=payload.owner_lock,
            is_here=payload.is_here,
        )
        shares = json.dumps(assignment(record, seat))
        for path, text in (
            (assignment_name(seat.worker, record.generation), shares),
            (task_name(seat.worker, record.generation), task.to_text()),
        ):
            self._host.write(record.run_id, path, text.encode())
        port = self._ports.get(seat.worker) or None
        job = worker_job(
            record,
            seat,
            root,
            port=port,
            python_path=(payload.python_path or "").replace("{root}", root) or None,
            preload=self._preload(root) if record.has_private_ports else None,
            timeouts=self._timeouts,
            early=early_program(record.interpreter_on(seat.host), task) if payload.is_warm else None,
        )
        self._jobs.append(job)
        self._host.start(job, token=self._proof() if self._proof else None)

    @property
    def warm_jobs(self) -> list[tuple[Job, tuple[int, ...]]]:
        """The jobs of this generation that can use parked processes another time, with the GPUs that each was given."""
        found = [(job, self._view.jobs.get(job.name)) for job in self._jobs if job.early]
        return [(job, status.gpus) for job, status in found if status is not None]

    def _preload(self, root: str) -> str | None:
        """Return the library that keeps workers' ports private to this host, or None if it cannot be loaded here."""
        facts = self._facts
        path = (self._payload.loopback or "").replace("{root}", root)
        return path if path and may_be_loaded(path, facts.platform, facts.machine) else None

    def _root(self, record: RunRecord) -> str:
        return record.host(self._host.name).root or self._facts.root

    @property
    def _facts(self) -> HostFacts:
        """Facts about the host; requested once."""
        return self._host.facts or self._host.hello()

    def _end(self, record: RunRecord) -> None:
        """End the workers, and fence off their generation so that no late request can start one."""
        if not record.generation:
            return  # it was queued
        if self._watch.view.heard_at is not None and self._watch.view.fence <= record.generation:
            self._host.fence(record.run_id, record.generation + 1)
            self._free_ports()

    def _copy(self, record: RunRecord) -> None:
        """Write a copy of the record to the host, for when no other copy can be read."""
        if not self._payload.is_here and self._copied_version != record.version and self._carried:
            with suppress(HostRefused):  # a full disk there must not end healthy workers
                self._host.write(record.run_id, "run.json", json.dumps(record.to_json()).encode())
            self._copied_version = record.version

    def _leave(self, record: RunRecord) -> None:
        """Erase the credentials on the host; the record stays there."""
        if self._has_left:
            return
        if self._payload.has_credentials and self._carried and not self._payload.is_here:
            self._host.write(record.run_id, CREDENTIALS, b"")
        self._has_left = True

    # Observation

    def _look(self, record: RunRecord) -> None:
        self._view = self._watch.view  # the report uses this same view: it must not be newer
        knocks = self._is_time_to_knock(record)
        reads = self._is_time_to_read_phases(record)
        for seat in record.order.on(self._host.name):
            job = self._view.jobs.get(job_name(record.generation, seat.worker))
            if seat.worker in self._ends:
                continue
            if job is None:
                self._miss(seat.worker)
                continue
            self._known_at[seat.worker] = time.monotonic()
            if job.has_ended:
                self._ends[seat.worker] = self._end_of(record, seat.worker, job)
                continue
            if knocks and seat.worker not in self._up and record.role(seat.worker).must_join:
                self._knock(record, seat.worker, job)
            if job.restarts != self._respawns.get(seat.worker, 0):
                self._respawns[seat.worker] = job.restarts
                self._phases.pop(seat.worker, None)
            if reads and self._phases.get(seat.worker) != TRAINING:
                self._read_phase(record, seat.worker)

    def _miss(self, worker: int) -> None:
        """Treat a worker as dead if its host answers but has not known the job for longer than the lease."""
        known_at = self._known_at.get(worker)
        if known_at is not None and time.monotonic() - known_at > self._timeouts.dead_after_s:
            self._ends[worker] = WorkerEnd(None, "vanished", ended_at=time.time())

    def _look_for_room(self, record: RunRecord) -> None:
        if record.state not in _WAITING or not needs_capacity(record.spec):
            self._room = None
        elif time.monotonic() - self._room_asked_at > _ROOM_S:
            self._room = look(self._host, record.spec)
            self._room_asked_at = time.monotonic()

    def _is_time_to_knock(self, record: RunRecord) -> bool:
        now = time.monotonic()
        pause_s = 0.0 if now - self._began_at < _SOON_S else _LATER_S
        is_time = record.order.phase is Phase.RUN and now - self._knocked_at >= pause_s
        if is_time:
            self._knocked_at = now
        return is_time

    def _knock(self, record: RunRecord, worker: int, job: JobStatus) -> None:
        """Check whether a worker's server listens. If others already wait for it, also note its last output line."""
        here = Endpoint.parse(record.order.addresses[worker])
        if self._host.listens(here.host, here.port):
            self._up.add(worker)
        elif any(each.joined_at is not None for each in record.workers):
            self._last_lines[worker] = (self._tail(record.run_id, job) or ("nothing",))[-1]

    def _is_time_to_read_phases(self, record: RunRecord) -> bool:
        now = time.monotonic()
        pause_s = _PHASES_SOON_S if now - self._began_at < _SOON_S else _PHASES_LATER_S
        is_time = record.order.phase is Phase.RUN and now - self._phases_read_at >= pause_s
        if is_time:
            self._phases_read_at = now
        return is_time

    def _read_phase(self, record: RunRecord, worker: int) -> None:
        """Read a worker's phase. Unknown values are ignored, because its script may have written anything there."""
        path = phase_name(worker, record.generation)
        found = self._read(record.run_id, path, max_bytes=_MOST_PHASE_BYTES).decode(errors="replace")
        if found in PHASES:
            self._phases[worker] = found

    def _end_of(self, record: RunRecord, worker: int, job: JobStatus) -> WorkerEnd:
        """Collect all information on how a worker ended, while its host answers."""
        found = self._read(record.run_id, exit_name(worker, record.generation))
        report = ExitReport.parse(found) if found else None
        told = report is not None and job.code is not None and report.exit_code == job.code % 256
        return WorkerEnd(
            code=job.code,
            reason=job.reason,
            oom=job.oom,
            ended_at=report.ended_at if report and told else job.ended_at or time.time(),
            asked_to_end=report.asked_to_end if report else False,
            exception=report.exception if report else None,
            traceback=report.traceback[-_TRACEBACK_CHARS:] if report and report.traceback else None,
            last_lines=self._tail(record.run_id, job),
            full_disk=job.full_disk,
        )

    def _tail(self, run_id: str, job: JobStatus) -> tuple[str, ...]:
        start = max(job.log_start, job.log_bytes - _TAIL_BYTES)
        data = self._read(run_id, job.log, start, _TAIL_BYTES)
        return last_lines(data, NUM_LAST_LINES)

    def _read(self, run_id: str, path: str, start: int = 0, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
        try:
            return self._host.read(run_id, path, start, max_bytes) or b""
        except HostRefused:  # an unreadable file must not hide that the worker has ended
            return b""

    def _living(self, generation: int) -> list[str]:
        found = []
        for name, job in self._view.jobs.items():
            place = place_of(job)
            is_told = place is not None and (place[0] != generation or place[1] in self._ends)
            if place and not (job.has_ended and is_told):
                found.append(name)
        return found

    def _report(self, record: RunRecord) -> HostReport:
        view = self._view
        places = {name: place_of(job) for name, job in view.jobs.items()}
        jobs = {
            place[1]: job
            for name, job in view.jobs.items()
            if (place := places[name]) and place[0] == record.generation
        }
        return HostReport(
            host=self._host.name,
            generation=record.generation,
            reachable=view.contact is not Contact.UNREACHABLE,
            silent_s=_silence_s(view),
            ports=dict(self._ports),
            address=self._address,
            up=frozenset(self._up),
            phases=dict(self._phases),
            pids={worker: job.pid for worker, job in jobs.items() if job.pid is not None},
            respawns={worker: job.restarts for worker, job in jobs.items() if job.restarts},
            ends=dict(self._ends),
            last_lines=dict(self._last_lines),
            living=tuple(self._living(record.generation)),
            fence=view.fence,
            stop_asked=view.stop_asked,
            error=self._error,
            room=self._room,
        )


def _silence_s(view: HostView) -> float:
    """Return for how many seconds no lease on the host can have been renewed."""
    return 0.0 if view.token_heard_at is None else time.monotonic() - view.token_heard_at


def address_of(host: HostRecord) -> str | None:
    """Return the address by which other hosts know a host, or None if it has only loopback addresses."""
    candidates = (host.tf_address, *host.addresses)
    return next((each for each in candidates if each and not _is_loopback(each)), None)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
