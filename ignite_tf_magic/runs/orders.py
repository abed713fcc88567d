"""Orders from a run's supervisor to its hosts, and the hosts' reports. The values travel as JSON.

An order is the wanted state, not a message. It may be lost, duplicated or read late; a host that has it establishes
that state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from ignite_tf_magic.launch.jobs import JobStatus

T = TypeVar("T")

# Why a host refuses to start a worker: other jobs hold the GPUs, the ports of the range or memory; or this one port.
NO_ROOM = frozenset({"no_gpu", "no_ports", "no_memory"})
PORT_TAKEN = "port_taken"


class Phase(Enum):
    """The step that the workers of a generation have been ordered to take."""

    NONE = "none"  # nothing is ordered yet
    PREPARE = "prepare"  # reserve ports; all older workers are confirmed dead
    RUN = "run"  # start: the addresses of all hosts are known
    END = "end"  # SIGTERM, grace period, SIGKILL


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """The place of one task in one generation.

    Attributes:
        worker: The task's number; workers come first.
        host: Name of the host on which it runs.
        node: Ignite node that the task connects to first, as "host:port" reachable from that host.
        partitions: Partitions to read, ascending; empty for a task that is not a worker; None reads the whole cache.
        rows: Number of rows that it reads.
        is_counted: Whether `rows` was counted; else it is the partitions' share of their nodes' row counts.
        local_rows: Number of its rows that are stored on a node of its own host.
    """

    worker: int
    host: str
    node: str
    partitions: tuple[int, ...] | None
    rows: int = 0
    local_rows: int = 0
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Order:
    """The wanted state of a run's hosts.

    Attributes:
        generation: Number of the launch of all workers, counted from 1.
        addresses: "host:port" of each task's TensorFlow server, in task order; known from RUN on.
        reason: Why workers are being ended, as text; used in the phase END.
    """

    generation: int = 0
    phase: Phase = Phase.NONE
    seats: tuple[TaskSlot, ...] = ()
    addresses: tuple[str, ...] = ()
    reason: str = ""

    def on(self, host: str) -> tuple[TaskSlot, ...]:
        """Return the task slots of one host."""
        return tuple(seat for seat in self.seats if seat.host == host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have task slots, in worker order."""
        return tuple(dict.fromkeys(seat.host for seat in self.seats))

    def to_json(self) -> dict[str, Any]:
        """Return a form that `json` can write."""
        return {**asdict(self), "phase": self.phase.value}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Order:
        """Create an order from the result of `to_json`."""
        seats = tuple(_seat(each) for each in found.get("seats", ()))
        return cls(
            **{
                **known_fields(cls, found),
                "phase": Phase(found.get("phase", "none")),
                "seats": seats,
                "addresses": tuple(found.get("addresses", ())),
            }
        )


def _seat(found: Mapping[str, Any]) -> TaskSlot:
    partitions = found.get("partitions")
    numbers = None if partitions is None else tuple(partitions)
    rows = found.get(
        "rows", sum(rows for rows, _ in found.get("sizes", {}).values())
    )  # "sizes": in older records
    return TaskSlot(**{**known_fields(TaskSlot, found), "partitions": numbers, "rows": rows})


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker's process ended, as far as its host knows.

    Attributes:
        code: Return code as in Popen; negative after a signal. None if no process saw it end.
        reason: "exited" if it ended by itself, else why its shim ended it.
        oom: Whether the system killed it for lack of memory.
        full_disk: Place on its host whose disk was full or read-only at that time.
        ended_at: When the script ended if the worker reported it, else when the process ended; seconds since the epoch.
        asked_to_end: Whether the script ended because of SIGTERM.
        exception: Name of the exception's class.
        traceback: The traceback as Python prints it.
        last_lines: The end of its output.
    """

    code: int | None
    reason: str | None = None
    oom: bool = False
    ended_at: float = 0.0
    asked_to_end: bool = False
    exception: str | None = None
    traceback: str | None = None
    last_lines: tuple[str, ...] = ()
    full_disk: str | None = None

    @property
    def words(self) -> str:
        """The last lines of its output, and its traceback."""
        return "\n".join([*self.last_lines, self.traceback or ""])


@dataclass(frozen=True, slots=True)
class HostProblem:
    """Why a host cannot carry out an order.

    Attributes:
        kind: The agent's name for the problem ("disk_full"), or the class of the error.
        is_retryable: Whether another attempt may succeed.
    """

    kind: str
    message: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """A host's resources for the workers of a run.

    Attributes:
        num_gpus: Total number of GPUs.
        free_gpus: GPUs that no job holds.
        free_ports: Free ports in the run's port range, counted up to the number it needs; None if any port will do.
        memory_bytes: Total memory.
        free_memory_bytes: Memory minus the limits of the jobs that have one.
        holders: Which runs hold which resources, as text.
        error: Why the resources are unknown.
    """

    num_gpus: int = 0
    free_gpus: int = 0
    free_ports: int | None = None
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    holders: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host's answer to an order.

    Attributes:
        generation: Generation of the order that it answers.
        reachable: Whether the host has answered lately.
        silent_s: For how many seconds no lease of its workers can have been renewed, on the reader's own clock.
        ports: Port of each worker that has a task slot there, from PREPARE on.
        address: Address at which other hosts reach it.
        up: Workers whose servers listen.
        phases: Current phase of each worker that has reported one, of `runs.phases`.
        pids: Process id of each worker of this generation.
        respawns: How often each worker's process was started again in this generation; workers with 0 are left out.
        ends: How workers of this generation ended.
        last_lines: Last output line of each worker that others wait for.
        living: Jobs of any generation of this run that have not ended there, or whose end is not in `ends` yet.
        fence: The host no longer starts anything of lower generations. This held before `living` was read.
        stop_asked: Whether a user on that host asked to stop the run.
        error: What keeps the host from carrying out the order.
        room: Resources for workers; reported while the run waits to be started.
    """

    host: str
    generation: int = 0
    reachable: bool = True
    silent_s: float = 0.0
    ports: Mapping[int, int] = field(default_factory=dict)
    address: str | None = None
    up: frozenset[int] = frozenset()
    phases: Mapping[int, str] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    respawns: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, WorkerEnd] = field(default_factory=dict)
    last_lines: Mapping[int, str] = field(default_factory=dict)
    living: tuple[str, ...] = ()
    fence: int = 0
    stop_asked: bool = False
    error: HostProblem | None = None
    room: Capacity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a form that `json` can write; the reader judges anew how long the host has been silent."""
        return {**asdict(self), "up": sorted(self.up)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], *, reachable: bool, silent_s: float) -> HostReport:
        """Create a report from the result of `to_json`."""
        ends = {
            int(worker): WorkerEnd(
                **{**known_fields(WorkerEnd, end), "last_lines": tuple(end.get("last_lines", ()))}
            )
            for worker, end in found.get("ends", {}).items()
        }
        error, room = found.get("error"), found.get("room")
        return cls(
            **{
                **known_fields(cls, found),
                "reachable": reachable,
                "silent_s": silent_s,
                "ports": _by_worker(found.get("ports", {})),
                "pids": _by_worker(found.get("pids", {})),
                "respawns": _by_worker(found.get("respawns", {})),
                "last_lines": _by_worker(found.get("last_lines", {})),
                "up": frozenset(found.get("up", ())),
                "phases": _by_worker(found.get("phases", {})),
                "ends": ends,
                "living": tuple(found.get("living", ())),
                "error": error and HostProblem(**known_fields(HostProblem, error)),
                "room": room and _room(room),
            }
        )


def _room(found: Mapping[str, Any]) -> Capacity:
    return Capacity(**{**known_fields(Capacity, found), "holders": tuple(found.get("holders", ()))})


def _by_worker(found: Mapping[str, T]) -> dict[int, T]:
    return {int(worker): value for worker, value in found.items()}


def known_fields(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows, of an object that a newer version may have written."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def job_name(generation: int, worker: int) -> str:
    """Return the name of a worker's job on its host."""
    return f"g{generation}-worker-{worker}"


def place_of(job: JobStatus) -> tuple[int, int] | None:
    """Return the generation and worker of a job, or None for a job that is not a worker."""
    head, _, worker = job.name.partition("-worker-")
    return (int(head[1:]), int(worker)) if head[1:].isdigit() and worker.isdigit() else None
