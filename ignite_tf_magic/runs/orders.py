"""What whoever supervises a run asks of its hosts, and what they answer. Values that travel as JSON.

An order is the wanted state, not a message: it may be lost, doubled or read late. A host that has it makes it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from ignite_tf_magic.launch.jobs import JobStatus

T = TypeVar("T")

# Why a host refuses to start a worker: other jobs have the GPUs, ports of the range or memory, or this very port.
NO_ROOM = frozenset({"no_gpu", "no_ports", "no_memory"})
PORT_TAKEN = "port_taken"


class Phase(Enum):
    """How far the workers of a generation have been asked to go."""

    NONE = "none"  # nothing is asked for yet
    PREPARE = "prepare"  # find ports; older workers have been confirmed dead
    RUN = "run"  # every host's address is known: start
    END = "end"  # SIGTERM, grace, SIGKILL


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """The place of one task in one generation.

    Attributes:
        worker: The task's number; those of workers come first.
        host: Name of the host on which it runs.
        node: Ignite's node there, "host:port" as that host reaches it; the worker knocks there first.
        partitions: Ascending; none for a task that is no worker; None reads the cache whole.
        rows: Rows that it reads.
        is_counted: Whether somebody has counted these; else they are its part of what its node has told.
        local_rows: Rows that a node of its own host holds.
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
        generation: Counts the launches of all workers, from 1.
        addresses: "host:port" of each task's TensorFlow server, in the order of the tasks; known from RUN on.
        reason: Why workers are ended, in words, in the phase END.
    """

    generation: int = 0
    phase: Phase = Phase.NONE
    seats: tuple[TaskSlot, ...] = ()
    addresses: tuple[str, ...] = ()
    reason: str = ""

    def on(self, host: str) -> tuple[TaskSlot, ...]:
        """The seats of one host."""
        return tuple(seat for seat in self.seats if seat.host == host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have seats, in the order of the workers."""
        return tuple(dict.fromkeys(seat.host for seat in self.seats))

    def to_json(self) -> dict[str, Any]:
        """Return a form that `json` writes."""
        return {**asdict(self), "phase": self.phase.value}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Order:
        """Read what `to_json` gave."""
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
    """How a worker's process ended, as its host knows.

    Attributes:
        code: As Popen gives it; negative is a signal. None: nobody saw it end.
        reason: "exited" by itself, or why its shim ended it.
        oom: Whether the system killed it for want of memory.
        full_disk: A place of its host whose disk was full, or could only be read, then.
        ended_at: When the script ended where it told so, else the process; seconds since the epoch.
        asked_to_end: Whether the script ended because it was sent SIGTERM.
        exception: Name of the exception's class.
        traceback: As Python prints it.
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
        """What it said at its end."""
        return "\n".join([*self.last_lines, self.traceback or ""])


@dataclass(frozen=True, slots=True)
class HostProblem:
    """Why a host cannot do what it was asked.

    Attributes:
        kind: As agents name it ("disk_full"), or the class of the error.
        is_retryable: Whether another attempt may succeed.
    """

    kind: str
    message: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a host has for the workers of a run.

    Attributes:
        num_gpus: All that it has.
        free_gpus: Those that no job has.
        free_ports: In the range that the run may use, counted up to what it needs; None where any port will do.
        memory_bytes: All that it has.
        free_memory_bytes: What jobs with a limit leave of it.
        holders: Which runs hold what, in words.
        error: Why nothing is known.
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
    """What a host answers.

    Attributes:
        generation: Of the order it speaks of.
        reachable: Whether it was heard from lately.
        silent_s: For how long its workers have had no new lease, at most; on the reader's own clock.
        ports: Port of each worker that has a seat there, from PREPARE on.
        address: By which other hosts reach it.
        up: Workers whose servers listen.
        phases: What workers do, of `runs.phases`, as far as they have told.
        pids: Process of each worker of this generation.
        respawns: How often the processes of workers were started again in this generation; none is 0.
        ends: How workers of this generation ended.
        last_lines: What workers that others wait for have said last.
        living: Jobs of any generation of this run that have not ended there, or whose end is not among `ends` yet.
        fence: The host starts nothing of lower generations any more, and had not before `living` was seen.
        stop_asked: Whether somebody asked there for the run to be stopped.
        error: What stands in the way of the order.
        room: What it has for workers; told while the run waits to be started.
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
        """Return a form that `json` writes; who reads it judges silence anew."""
        return {**asdict(self), "up": sorted(self.up)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], *, reachable: bool, silent_s: float) -> HostReport:
        """Read what `to_json` gave."""
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
    """Of an object that a newer version may have written, what this version knows."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def job_name(generation: int, worker: int) -> str:
    """Name of a worker's job on its host."""
    return f"g{generation}-worker-{worker}"


def place_of(job: JobStatus) -> tuple[int, int] | None:
    """Generation and worker of a job; None for one that is no worker."""
    head, _, worker = job.name.partition("-worker-")
    return (int(head[1:]), int(worker)) if head[1:].isdigit() and worker.isdigit() else None
