"""Makes a host do what a run's order says, and tells how it stands there.

The same for every run: of an attached one, a controller for each host lives in the notebook's process and reaches its
host over SSH; of a detached one, each host's reconciler has one for its own machine.
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
NUM_LAST_LINES = 60  # of which a traceback is taken away before they are shown
_TAIL_BYTES = 8192
_TRACEBACK_CHARS = 16_000
_SOON_S, _LATER_S = 60.0, 2.0  # servers come up soon, or most likely never
_PHASES_SOON_S, _PHASES_LATER_S = 0.3, 5.0
_MOST_PHASE_BYTES = 64
_ROOM_S = 1.0
_WAITING = (RunState.QUEUED, RunState.RESTARTING)
_NO_PROGRAM = (
    ". Name the interpreter: --python PATH, or python in ignite-tf.toml; ignite-tf doctor looks at all"
)
# What a host refuses now and may grant the next time.
_PASSING_KINDS = {"disk_full", PORT_TAKEN, "older_alive", "stale_generation"}


@dataclass(frozen=True, slots=True)
class HostPayload:
    """What a host needs beside its orders.

    Attributes:
        files: Content of files, by their path in the run's directory there.
        parcels: Trees that must be there.
        python_path: Where workers find this package, when their interpreter does not have it.
        loopback: The library that keeps ports of workers to their host, there; None for none.
        owner_lock: Lock of the run's owner, where the owner is on that same machine.
        is_here: Whether the host is the machine on which the run was started.
        has_credentials: Whether the workers find credentials in the run's directory.
        is_warm: Whether workers may become of processes that were parked on the host after an earlier run.
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
    """One host of one run. Not thread-safe: one thread calls it.

    Args:
        host: The relay; who made it closes it.
        watch: Polls that host for the run.
        payload: What is carried there before the first worker starts.
        on_log: Told the log of each worker that was started, or found running; again when it raised.
        proof: Gives the host's clock when it was last known that it may have workers; their leases count from
            then, and who gives it renews them. None: the controller itself does, as the owner is this process.
        tunnels: What leads to tasks on other hosts, for a run that has it so.
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
        self._address: str | None = None  # depends on which other hosts there are
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
        """Bring the host nearer to what the order says, and report. Blocks while the host answers.

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
            # Without --wait a first start that does not fit is refused.
            may_wait = record.spec.waits_for_room or record.generation > 1
            is_retryable = error.kind in _PASSING_KINDS or (error.kind in NO_ROOM and may_wait)
            advice = _NO_PROGRAM if error.kind == "no_program" else ""
            self._error = HostProblem(error.kind, f"{error}{advice}", is_retryable=is_retryable)
        except HostError as error:
            if self._watch.view.heard_at is None:  # else it was reached before, and may be again
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
            # From then on the watch's silence tells how long the leases can last.
            is_allowed = self._proof is None or self._proof() is not None
            if order.phase is Phase.RUN and is_allowed and self._watch.view.fence >= order.generation:
                if self._tunnels is not None:  # before workers start, and again when a lost link is back
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
        else:  # another process had prepared this host
            addresses = [Endpoint.parse(record.order.addresses[seat.worker]) for seat in seats]
            self._ports = {seat.worker: each.port for seat, each in zip(seats, addresses, strict=True)}

    def _reserve(self, record: RunRecord, count: int) -> tuple[int, ...]:
        if self._tunnels is not None:
            return self._tunnels.reserve(record, self._host.name, count)
        return self._host.reserve_ports(count, record.spec.port_range)

    def _check_privacy(self, record: RunRecord) -> None:
        """Refuse a host that cannot keep the ports of its workers to itself, where a run must have that.

        Raises:
            HostRefused: Says what is missing.
        """
        if self._tunnels is None:
            raise HostRefused(
                self._host.name,
                "no_tunnel",
                "--tunnel needs a process that owns the run: it goes not with --detach",
            )
        if self._preload(self._root(record)) is None:
            facts = self._facts
            raise HostRefused(
                self._host.name,
                "no_tunnel",
                f"the library that keeps ports of workers to their host cannot be loaded there ({facts.platform}, "
                f"{facts.machine}): --tunnel needs Linux, the processor of this machine, a C compiler where this "
                "package was installed, and a root without blanks and colons",
            )

    def _free_ports(self) -> None:
        """Let go of ports: shims hold those of their workers themselves."""
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
        """Find the address by which the order's other hosts reach this one."""
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
            self._started.add(seat.worker)  # only now: who is told may need the host, and be told once more
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
        """The jobs of this generation that may start warm another time, with the GPUs that each was given."""
        found = [(job, self._view.jobs.get(job.name)) for job in self._jobs if job.early]
        return [(job, status.gpus) for job, status in found if status is not None]

    def _preload(self, root: str) -> str | None:
        """Return the library that keeps ports of workers to this host, if it can be loaded here."""
        facts = self._facts
        path = (self._payload.loopback or "").replace("{root}", root)
        return path if path and may_be_loaded(path, facts.platform, facts.machine) else None

    def _root(self, record: RunRecord) -> str:
        return record.host(self._host.name).root or self._facts.root

    @property
    def _facts(self) -> HostFacts:
        """What the host is; it is asked once."""
        return self._host.facts or self._host.hello()

    def _end(self, record: RunRecord) -> None:
        """Have the workers ended, and none of this generation started any more, not even by a late request."""
        if not record.generation:
            return  # it was queued
        if self._watch.view.heard_at is not None and self._watch.view.fence <= record.generation:
            self._host.fence(record.run_id, record.generation + 1)
            self._free_ports()

    def _copy(self, record: RunRecord) -> None:
        """Leave the record on the host, whose directory tells of the run when nothing else can."""
        if not self._payload.is_here and self._copied_version != record.version and self._carried:
            with suppress(HostRefused):  # a full disk there must not end workers that do well
                self._host.write(record.run_id, "run.json", json.dumps(record.to_json()).encode())
            self._copied_version = record.version

    def _leave(self, record: RunRecord) -> None:
        """Leave the record behind, and nothing secret."""
        if self._has_left:
            return
        if self._payload.has_credentials and self._carried and not self._payload.is_here:
            self._host.write(record.run_id, CREDENTIALS, b"")
        self._has_left = True

    # Looking

    def _look(self, record: RunRecord) -> None:
        self._view = self._watch.view  # that of the report, too: it must not know more than was looked at
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
        """Take a worker for ended whose host answers, but has lost all trace of it for longer than its lease."""
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
        """Look whether a worker's server listens; while others wait for it, note what the worker says."""
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
        """Note what a worker has told; its own script may have written anything there."""
        path = phase_name(worker, record.generation)
        found = self._read(record.run_id, path, max_bytes=_MOST_PHASE_BYTES).decode(errors="replace")
        if found in PHASES:
            self._phases[worker] = found

    def _end_of(self, record: RunRecord, worker: int, job: JobStatus) -> WorkerEnd:
        """Collect all that tells how a worker ended, while its host can be asked."""
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
        except HostRefused:  # a file that cannot be read must not hide that the worker has ended
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
    """For how long no lease there can have been made longer."""
    return 0.0 if view.token_heard_at is None else time.monotonic() - view.token_heard_at


def address_of(host: HostRecord) -> str | None:
    """Return the address by which a host is known to others, unless that only means itself."""
    candidates = (host.tf_address, *host.addresses)
    return next((each for each in candidates if each and not _is_loopback(each)), None)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
