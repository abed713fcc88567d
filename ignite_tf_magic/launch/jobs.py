"""Values that a host and those who use it exchange: what to start, how it stands, what the host is.

Nothing here does anything. What comes over the wire is read tolerantly: a field that this version does not
know is ignored, so that relays of other versions can be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

LOG_LIMIT_BYTES = 1 << 30


class JobState(Enum):
    """How a job stands, as its host knows it."""

    RUNNING = "running"
    ENDING = "ending"  # asked to end, and still there
    ENDED = "ended"
    LOST = "lost"  # of another boot of the host, and nothing tells how it ended


@dataclass(frozen=True, slots=True)
class EarlyProgram:
    """A program that is started before there is a job for it, and becomes the job's process then.

    Attributes:
        argv: Program and arguments; the number of the descriptor at which it is told of its job is added.
        input_text: What it reads from its standard input meanwhile.
    """

    argv: tuple[str, ...]
    input_text: str = field(repr=False)

    def to_wire(self) -> dict[str, Any]:
        """Return it as requests have it."""
        return {"argv": list(self.argv), "input": self.input_text}


@dataclass(frozen=True, slots=True)
class Job:
    """One process tree to start on a host.

    Attributes:
        run: The run that it belongs to; names its directory on the host.
        name: Its own name within the run, like "g1-worker-0"; a start may be repeated under the same name.
        generation: The host refuses generations that are older than the newest it has seen.
        argv: Program and arguments; no shell reads them. Never holds a secret: any user may list it.
        env: Variables on top of those that the host gives. Never holds a secret either.
        log: Where its output goes, relative to the run's directory.
        cwd: Its working directory; a relative one is in the run's directory. None is the home directory.
        stdin_text: What it reads from its standard input, which then ends.
        lease_s: It is ended when nobody has renewed its lease for so long; None lets it live.
        grace_s: How long it may take to end by itself before it is killed.
        ports: Ports of the host that its shim holds for it.
        num_gpus: How many GPUs it gets for itself.
        memory_bytes: It is ended when its processes have more memory of their own together; 0 is no limit.
        respawns: So often its process is started again, in the same generation, when a signal has ended it.
        keep: It is started again when it ends with another code than 0, and no generation fences it.
        log_limit_bytes: The older half of a longer log is deleted, visibly; None keeps everything.
        create_cwd: The working directory is made when it is missing.
        exit_file: File of an `ExitReport`, relative to the run's directory. A process that has written it and still
            runs ten seconds later is killed, and its exit code is the one in the file. Empty for none.
        early: A process that was parked with this program, and else as this job's is started, becomes the job's.
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
        """Return the fields of a `start`, but for its lease, which needs the host's clock, and its input."""
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
    """How a job stands, as its shim wrote it last.

    Attributes:
        beat: Counts the shim's signs of life, about one a second.
        started_at: Time of the host's clock, in seconds since the epoch; so is `ended_at`.
        code: As `subprocess.Popen.returncode`; None while it runs, and when nobody knows it.
        reason: Why it ended: "exited" by itself, "ended", "fenced", "lease", "memory", "agent_lost", ...
        oom: The system killed it for want of memory.
        full_disk: A place of its host whose disk was full, or could only be read, when it failed; with what was left.
        log_bytes: Where its log ends.
        log_start: Where its log begins; what was before is deleted.
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
        """Whether nothing of it runs any more."""
        return self.state in (JobState.ENDED, JobState.LOST)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> JobStatus:
        """Read a STATUS of a relay."""
        known = _known(cls, wire)
        known["state"] = JobState(wire["state"])
        known["gpus"] = tuple(wire.get("gpus") or ())
        return cls(**known)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a relay says of its host.

    Attributes:
        boot_id: Changes with every boot.
        python: Version of the interpreter that runs the relay.
        root: Where everything of ours lies on that host.
        time: The host's clock when it answered, in seconds since the epoch.
        ssh_address: The host's address as its sshd sees it; None without ssh.
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
        interpreter: Its path; None when it was not found or did not run.
        version: "3.11.7".
        modules: Installed version of each that was asked for, None when missing.
        uv: Path of uv, None when the host has none.
        ends_at_logout: Whether the system ends all that a user has started when he logs out.
        disk_fault: Why workers cannot use the directory of our files; None when they can.
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
    """What a living job of a host holds for itself."""

    run: str
    job: str
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What jobs could have of a host.

    Attributes:
        gpus: All of them.
        leases: What jobs hold of GPUs, ports and memory.
        free_ports: How many of the range that was asked for are free, counted up to what was wanted.
        memory_bytes: All that the host has.
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
    """What a host holds of a run.

    Attributes:
        record: The run's record as this host has it; None when it has none that can be read.
        fence: The highest generation that the host has seen.
        stop: Somebody asked for its end.
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
    """Whose lease to prolong, and for how long.

    Attributes:
        token: The host's clock as it was heard: the lease ends `lease_s` after that moment. None takes the
            newest one heard; who renews only on a condition gives the one heard before it was checked.
    """

    generation: int
    lease_s: float
    token: float | None = None


@dataclass(frozen=True, slots=True)
class LinkTimeouts:
    """How long to wait for a host, in seconds.

    Attributes:
        connect_s: For a connection, and for its relay's first words.
        silence_s: A host that owes an answer for so long is unreachable.
        keepalive_s: How often a silent ssh connection is asked for a sign of life; lost after 3 without.
        poll_s: How long a host may hold back the answer that nothing has changed.
        retry_min_s: Wait before the second attempt to reach a lost host; doubled from then on.
        retry_max_s: The longest such wait.
    """

    connect_s: float = 15.0
    silence_s: float = 8.0
    keepalive_s: float = 2.0
    poll_s: float = 1.0
    retry_min_s: float = 0.2
    retry_max_s: float = 2.0

    def divided(self, by: float) -> LinkTimeouts:
        """Return the same with everything faster, but for connecting, which takes what it takes."""
        return LinkTimeouts(
            self.connect_s,
            self.silence_s / by,
            self.keepalive_s / by,
            self.poll_s / by,
            self.retry_min_s / by,
            self.retry_max_s / by,
        )


def _known(value_class: type, wire: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the fields that a class has; those that are null keep their defaults."""
    names = {f.name for f in fields(value_class)}
    return {name: value for name, value in wire.items() if name in names and value is not None}
