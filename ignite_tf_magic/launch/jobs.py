"""Values exchanged with a host: jobs to start, their status, and facts about the host.

These classes have no behaviour. Parsing ignores fields that this version does not know, so that it can read answers
from relays of other versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

LOG_LIMIT_BYTES = 1 << 30


class JobState(Enum):
    """The state of a job, as its host knows it."""

    RUNNING = "running"
    ENDING = "ending"  # asked to end, and still running
    ENDED = "ended"
    LOST = "lost"  # started before the host rebooted; how it ended is unknown


@dataclass(frozen=True, slots=True)
class EarlyProgram:
    """A program that starts before its job exists, and later becomes the job's process.

    Attributes:
        argv: Program and arguments. The number of a descriptor is appended: the socket through which its job arrives.
        input_text: Its standard input until then.
    """

    argv: tuple[str, ...]
    input_text: str = field(repr=False)

    def to_wire(self) -> dict[str, Any]:
        """Return the program as it is sent in requests."""
        return {"argv": list(self.argv), "input": self.input_text}


@dataclass(frozen=True, slots=True)
class Job:
    """One process tree to start on a host.

    Attributes:
        run: The run that it belongs to, which names its directory on the host.
        name: Its name within the run, such as "g1-worker-0". Repeated starts with the same name start it once.
        generation: The host refuses generations that are older than the newest it has seen.
        argv: Program and arguments, run without a shell. Must not hold a secret: any user can list it.
        env: Variables in addition to those of the host. Must not hold a secret either.
        log: File for its output, relative to the run's directory.
        cwd: Its working directory, relative to the run's directory. None means the relay's, which over SSH is the
            home directory.
        stdin_text: The whole text of its standard input. None means empty.
        lease_s: Seconds after which it is ended unless its lease is renewed. None means no lease.
        grace_s: Seconds it may take to end by itself before it is killed.
        ports: Ports of the host that its shim reserves for it.
        num_gpus: Number of GPUs that it gets for itself.
        memory_bytes: Private memory of all its processes together above which it is ended; 0 means no limit.
        respawns: How often its process is started again, in the same generation, after a signal ended it.
        keep: Whether to start it again whenever it exits with a nonzero code. The generation check does not end it.
        log_limit_bytes: Size at which the older half of the log is deleted; readers see a gap. None keeps everything.
        create_cwd: Whether to create the working directory if it is missing.
        exit_file: File of an `ExitReport`, relative to the run's directory, or empty. A process that still runs ten
            seconds after it wrote the file is killed, and its exit code is the one in the file.
        early: The early program of this job. A parked process that was started with this program in the same
            environment becomes the job's process.
    """

    run: str
    name: str
    generation: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: str
    cwd: str | None = None
    stdin_text: str | None = field(default=None, repr=False)
    lease_s: float | None = None
    grace_s: float = 3.0
    ports: tuple[int, ...] = ()
    num_gpus: int = 0
    memory_bytes: int = 0
    respawns: int = 0
    keep: bool = False
    log_limit_bytes: int | None = LOG_LIMIT_BYTES
    create_cwd: bool = False
    exit_file: str = ""
    early: EarlyProgram | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the fields of a `start` request without its input and its lease, which needs the host's clock."""
        return {
            "run": self.run,
            "name": self.name,
            "generation": self.generation,
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "cwd_create": self.create_cwd,
            "log": self.log,
            "grace_s": self.grace_s,
            "ports": list(self.ports),
            "gpus": self.num_gpus,
            "memory_bytes": self.memory_bytes,
            "respawns": self.respawns,
            "keep": self.keep,
            "log_limit_bytes": self.log_limit_bytes,
            "exit_file": self.exit_file,
            "warm": self.early and self.early.to_wire(),
        }


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job, as its shim last wrote it.

    Attributes:
        beat: Number of heartbeats of the shim, about one a second.
        started_at: Seconds since the epoch on the host's clock. `ended_at` likewise.
        code: Like `subprocess.Popen.returncode`; None while it runs, and if unknown.
        reason: Why it ended: "exited" by itself, "ended", "fenced", "lease", "memory", "agent_lost", ...
        oom: Whether the system killed it because memory was short.
        full_disk: A path whose disk was full or read-only when the job failed, with the room that was left.
        log_bytes: Offset at which its log ends.
        log_start: Offset at which its log begins. Earlier bytes were deleted.
        restarts: How often its process was started again.
    """

    name: str
    generation: int = 0
    state: JobState = JobState.RUNNING
    pid: int | None = None
    beat: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    reason: str | None = None
    oom: bool = False
    full_disk: str | None = None
    log: str = ""
    log_bytes: int = 0
    log_start: int = 0
    gpus: tuple[int, ...] = ()
    restarts: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether none of its processes runs any more."""
        return self.state in (JobState.ENDED, JobState.LOST)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> JobStatus:
        """Read a job's status from an answer of a relay."""
        known = _known(cls, wire)
        known["state"] = JobState(wire["state"])
        known["gpus"] = tuple(wire.get("gpus") or ())
        return cls(**known)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a relay reports about its host.

    Attributes:
        boot_id: Changes with every boot.
        python: Version of the interpreter that runs the relay.
        root: Directory of this package's files on the host.
        time: The host's clock when it answered, in seconds since the epoch.
        ssh_address: The host's address as its sshd sees it; None without SSH.
        agent: Hash of the relay's source.
    """

    hostname: str
    boot_id: str = ""
    uid: int | None = None
    user: str = ""
    python: str = ""
    platform: str = ""
    machine: str = ""
    cpus: int = 0
    root: str = ""
    pid: int = 0
    time: float = 0.0
    ssh_address: str | None = None
    agent: str = ""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> HostFacts:
        """Read the answer to `hello`."""
        return cls(**_known(cls, wire))


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a host, as nvidia-smi lists it."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What an interpreter on a host offers, and what the host has.

    Attributes:
        interpreter: Its path; None if it was not found or did not run.
        version: Its version, such as "3.11.7".
        modules: Installed version of each requested module; None if it is missing.
        uv: Path of uv; None if the host has none.
        ends_at_logout: Whether the system ends all processes of a user at logout.
        disk_fault: Why workers cannot use the directory of this package's files; None if they can.
    """

    interpreter: str | None
    version: str | None = None
    modules: Mapping[str, str | None] = field(default_factory=dict)
    disk_free_bytes: int = 0
    memory_bytes: int = 0
    gpus: tuple[Gpu, ...] = ()
    uv: str | None = None
    ends_at_logout: bool = False
    disk_fault: str | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ProbeFacts:
        """Read the answer to `probe`."""
        known = _known(cls, wire)
        known["interpreter"] = wire.get("interpreter")
        known["gpus"] = tuple(Gpu(**_known(Gpu, gpu)) for gpu in wire.get("gpus") or ())
        return cls(**known)


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The GPUs, ports and memory that a running job holds for itself."""

    run: str
    job: str
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The GPUs, ports and memory of a host, and what its jobs hold of them.

    Attributes:
        gpus: All GPUs of the host.
        leases: What running jobs hold.
        free_ports: Number of free ports in the requested range, counted up to the requested number.
        memory_bytes: All memory of the host.
    """

    gpus: tuple[Gpu, ...] = ()
    leases: tuple[HeldDevices, ...] = ()
    free_ports: int | None = None
    memory_bytes: int = 0

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> DeviceFacts:
        """Read the answer to `devices`."""
        gpus = tuple(Gpu(**_known(Gpu, gpu)) for gpu in wire.get("gpus") or ())
        leases = tuple(
            HeldDevices(
                each["run"],
                each["job"],
                tuple(each.get("gpus") or ()),
                tuple(each.get("ports") or ()),
                each.get("memory_bytes") or 0,
            )
            for each in wire.get("leases") or ()
        )
        return cls(gpus, leases, wire.get("free_ports"), wire.get("memory_bytes") or 0)


@dataclass(frozen=True, slots=True)
class RunOnHost:
    """What one host knows of a run.

    Attributes:
        record: The host's copy of the run's record; None if there is none that can be read.
        fence: The highest generation that the host has seen.
        stop: Whether a stop of the run was requested through this host.
    """

    run: str
    record: Mapping[str, Any] | None = None
    fence: int = 0
    stop: bool = False
    jobs: tuple[JobStatus, ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> RunOnHost:
        """Read an entry of the answer to `list`."""
        known = _known(cls, wire)
        known["jobs"] = tuple(JobStatus.from_wire(job) for job in wire.get("jobs") or ())
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal of the leases of one generation's jobs.

    Attributes:
        token: A reading of the host's clock. The lease ends `lease_s` after it. None takes the newest reading. A caller
            that renews only on a condition passes a reading from before it checked the condition.
    """

    generation: int
    lease_s: float
    token: float | None = None


@dataclass(frozen=True, slots=True)
class LinkTimeouts:
    """How long to wait for a host, in seconds.

    Attributes:
        connect_s: Limit for a connection, and for the first output of its relay.
        silence_s: A host whose answer is overdue by this time is unreachable.
        keepalive_s: Interval of keepalives on a silent SSH connection, which is lost after 3 without an answer.
        poll_s: How long a host may wait for changes before it answers a poll.
        retry_min_s: Delay before the second attempt to reach a lost host. It doubles with each attempt.
        retry_max_s: The longest such delay.
    """

    connect_s: float = 15.0
    silence_s: float = 8.0
    keepalive_s: float = 2.0
    poll_s: float = 1.0
    retry_min_s: float = 0.2
    retry_max_s: float = 2.0

    def divided(self, by: float) -> LinkTimeouts:
        """Return a copy with all times but `connect_s` divided by a number."""
        return LinkTimeouts(
            self.connect_s,
            self.silence_s / by,
            self.keepalive_s / by,
            self.poll_s / by,
            self.retry_min_s / by,
            self.retry_max_s / by,
        )


def _known(value_class: type, wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a class has, without nulls, so that those keep their defaults."""
    names = {f.name for f in fields(value_class)}
    return {name: value for name, value in wire.items() if name in names and value is not None}
