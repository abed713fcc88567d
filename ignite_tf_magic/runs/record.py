"""The record of a run: what is stored about it, and the summary that users see.

Writing is strict and reading is tolerant: unknown fields from a newer version are ignored, and fields that an
older version lacks have defaults.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.files import stamp_of, write_private
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.orders import Order, WorkerEnd, known_fields
from ignite_tf_magic.runs.phases import TRAINING
from ignite_tf_magic.runs.roles import Role, Strategy, cluster_spec, roles_of
from ignite_tf_magic.runs.states import RunEvent, RunState, after
from ignite_tf_magic.runs.task import is_python_script
from ignite_tf_magic.runs.type_checks import misfits

FORMAT = 2
_MOST_LAUNCHES = 1_000_000
_MOST_KNOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options that a user passes and the run's hosts use unchanged.

    Attributes:
        python: Interpreter of the workers: a path on their hosts, or a name in the PATH there. None uses each host's
            configured interpreter; on the machine where the run was started, the interpreter that started it.
        deadline_s: Time limit for the whole run. None uses the configured limit, or no limit if none is configured.
        script_name: Name of the script in tracebacks.
        command: Program and arguments that each worker runs instead of a script, in a copy of the job's directory;
            "python" is the workers' interpreter.
        args: The script's arguments.
        start_timeout_s: Time limit for the hosts to start the workers' processes; the run fails if it passes. It is
            also the time after which the run reports workers that have not joined those that have. None has no limit.
        hosts: The only hosts that may run workers; empty allows all hosts that hold partitions.
        num_gpus: GPUs reserved for each worker. With 0, workers see all GPUs of their host, as any program does.
        memory_bytes: Memory limit of each worker together with all processes that it starts. A worker that exceeds the
            limit is ended. A host accepts a worker only if the limits of other runs leave enough memory. 0 is no limit.
        allow_partial: Whether the run may train on the rest of a cache that lost rows, or on one side of a split
            cluster.
        priority: Runs waiting for room start in order of priority, highest first, then in order of waiting time.
        survives_s: How long workers keep running after the owner process exits cleanly, as a restarted kernel does, so
            that another process can take over. With 0, they end with the owner.
        num_ps: Number of parameter servers beside the workers.
        chief: Where the script that drives the workers runs: a host, "here" for this machine, or "random" for any host
            that the run may use; empty is the host of worker 0.
        has_evaluator: Whether an additional task runs the script to evaluate what the others save.
        compat: Whether workers may import `tensorflow.contrib.ignite`, which TensorFlow had until 1.15.
        finish_timeout_s: How long an evaluator may continue after the script has succeeded.
        tags: Labels for finding and comparing runs.
        note: Free text from the user who started the run.
        tunnel: Whether tasks reach each other only through SSH connections of the owner process, and their ports accept
            connections only from their own host. The run does not start where that is impossible. Such a run cannot
            use `survives_s`.
    """

    python: str | None = None
    deadline_s: float | None = None
    script_name: str = "cell"
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    start_timeout_s: float | None = 180.0
    hosts: tuple[str, ...] = ()
    num_gpus: int = 0
    memory_bytes: int = 0
    allow_partial: bool = False
    priority: int = 0
    survives_s: float = 0.0
    num_ps: int = 0
    chief: str = ""
    has_evaluator: bool = False
    compat: bool = False
    finish_timeout_s: float = 60.0
    tags: tuple[str, ...] = ()
    note: str = ""
    tunnel: bool = False

    def options(self) -> dict[str, Any]:
        """Return only the fields of `RunOptions`, by name."""
        return {each.name: getattr(self, each.name) for each in fields(RunOptions)}


@dataclass(frozen=True, slots=True)
class RunSpec(RunOptions):
    """The request that a run was started with. It stays the same for the whole life of the run.

    Attributes:
        strategy: How the run's tasks work together.
        cwd: Working directory of workers on the machine where the run was started. Other hosts use their own.
        package: Digest of the bundle with this package, for hosts on other machines.
        job_parcel: Digest of the bundle with the job's directory.
        after_import: Functions, as "package.module:function", that workers call after importing a module, by module.
        variables_from: A function in the same notation. It returns the script's predefined variables as a dict. Empty
            for none.
        environment: Additional environment variables for the workers' processes.
        max_restarts: Maximum number of restarts after consecutive failures.
        restarts_on_rebalance: Whether workers are restarted when the cache's primary owners change.
        port_range: Ports for TensorFlow's servers, both ends included; None uses any free port.
        log_limit_bytes: Size limit of each worker's log; the older half of a longer log is deleted. None keeps all.
        requirements: Name of the requirements file of the workers' environments; None builds no environments.
        waits_for_room: Whether the run waits for GPUs and ports that other runs hold.
        made_with: The commit of the working directory and the package versions where the run was started, by name.
    """

    cache: str
    num_workers: int = 1
    strategy: Strategy = Strategy.SYNC
    cwd: str | None = None
    package: str | None = None
    job_parcel: str | None = None
    after_import: Mapping[str, str] = field(default_factory=dict)
    variables_from: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 10
    restarts_on_rebalance: bool = True
    port_range: tuple[int, int] | None = None
    log_limit_bytes: int | None = 1 << 30
    requirements: str | None = None
    waits_for_room: bool = False
    made_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs_script(self) -> bool:
        """Whether workers run Python code in their own process instead of starting another program."""
        return not self.command or is_python_script(self.command)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The role of each task, in task order."""
        return roles_of(self.strategy, self.num_workers, self.num_ps, self.has_evaluator)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host that a run may use, and how to reach it.

    Attributes:
        ssh: SSH name of the host; None for the machine on which the run was started.
        root: State directory of this package on the host.
        python: Interpreter of the workers.
        agent_python: Interpreter of the agent, 3.8 or later.
        addresses: Addresses that only this host has, best first.
        tf_address: Address at which other hosts reach it, if configured.
        environment: Directory of the virtual environment whose interpreter runs the workers; None uses `python`.
        nodes: Ids of the host's nodes that no address identifies, from the time when the workers were placed.
    """

    name: str
    ssh: str | None = None
    root: str | None = None
    python: str = "python3"
    agent_python: str = "python3"
    addresses: tuple[str, ...] = ()
    tf_address: str | None = None
    environment: str | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The status of one task of a run, in its latest generation.

    Attributes:
        worker: Number among all tasks; workers come first.
        rows: Number of rows in its partitions.
        pid: Process id on its host; None before it was started.
        joined_at: When its TensorFlow server was first seen listening, in seconds since the epoch. None before that,
            and for scripts that need no server.
        exit_code: None while it runs; 128 + N after signal N.
        signal: Name of the signal that ended it.
        ended_at: When the script ended if the worker reported it, else when the process ended; seconds since the epoch.
        ended_by_owner: Whether the run ended the worker for a reason other than the worker's own failure.
        respawns: How often its process was started again while the other tasks continued.
        phase: Current phase, one of `runs.phases`; empty before the worker reports one.
        phase_at: When the phase was first seen, in seconds since the epoch.
    """

    worker: int
    host: str
    rows: int = 0
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_at: float | None = None
    ended_by_owner: bool = False
    joined_at: float | None = None
    respawns: int = 0
    phase: str = ""
    phase_at: float | None = None


@dataclass(frozen=True, slots=True)
class PastGeneration:
    """An earlier generation of workers, which was ended and replaced.

    Attributes:
        hosts: Host of each worker, in worker order.
        cause: Why the generation was ended, as text for users.
    """

    generation: int
    hosts: tuple[str, ...]
    cause: str
    ended_at: float


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The complete state of a run, as its owner stores it.

    Attributes:
        owner_host: Machine of the process that owns the run.
        detached: Whether the run's hosts supervise it themselves.
        supervisor: Host that makes the decisions of a detached run.
        order: The latest order to the hosts.
        hosts: All hosts that the run may use or has used.
        past: Earlier generations, oldest first.
        topology: Ignite's nodes when the run started, each as a "host:port" that it lists.
        owners: Fingerprint of the cache's primary owners at the time of the order.
        num_failures: Number of consecutive failures.
        failed_worker: The worker whose failure is shown first.
        end: How that worker ended.
        reason: Why the run failed or restarts, if the cause is not a worker's failure.
        is_retryable: Whether another attempt may succeed; None if that depends on how the workers ended.
        waiting_for: What the run is waiting for now.
        left_until: Set when the owner has exited and left the run for another process to take over: until when the
            workers keep running. Seconds since the epoch.
        first_started_at: When a resumed run was first started.
        version: Counts the changes of this record.
    """

    run_id: str
    spec: RunSpec
    state: RunState
    started_at: float
    workers: tuple[WorkerRecord, ...] = ()
    order: Order = field(default_factory=Order)
    hosts: tuple[HostRecord, ...] = ()
    past: tuple[PastGeneration, ...] = ()
    topology: tuple[str, ...] = ()
    owners: str | None = None
    num_failures: int = 0
    ended_at: float | None = None
    exit_code: int | None = None
    failed_worker: int | None = None
    end: WorkerEnd | None = None
    reason: str | None = None
    is_retryable: bool | None = None
    waiting_for: str | None = None
    owner_pid: int = 0
    owner_host: str = ""
    detached: bool = False
    supervisor: str = ""
    left_until: float | None = None
    first_started_at: float | None = None
    version: int = 1

    @property
    def generation(self) -> int:
        """Number of the current launch of the workers, counted from 1."""
        return self.order.generation

    def with_worker(self, worker: WorkerRecord) -> RunRecord:
        """Return a record with this worker's status replaced."""
        others = {each.worker: each for each in self.workers} | {worker.worker: worker}
        return replace(self, workers=tuple(others[index] for index in sorted(others)))

    def happened(self, event: RunEvent, **changes: Any) -> RunRecord:
        """Return the record in the state that follows the event, with these fields changed."""
        return replace(self, state=after(self.state, event), **changes)

    def host(self, name: str) -> HostRecord:
        """Return the host of this name."""
        return next(host for host in self.hosts if host.name == name)

    def interpreter_on(self, name: str) -> str:
        """Return the workers' interpreter on a host."""
        host = self.host(name)
        return f"{host.environment}/bin/python" if host.environment else self.spec.python or host.python

    def role(self, worker: int) -> Role:
        """Return the role of a task, by its number."""
        return self.spec.roles[worker]

    @property
    def has_private_ports(self) -> bool:
        """Whether the tasks' ports are private to their host, because no other machine needs to reach them."""
        return self.spec.tunnel or len(self.order.hosts) == 1

    @property
    def cluster_spec(self) -> dict[str, list[str]]:
        """Addresses of TensorFlow's servers, by job; empty before they are known."""
        addresses = self.order.addresses
        return cluster_spec(self.spec.strategy, self.spec.roles, addresses) if addresses else {}

    def hosts_of(self, worker: int) -> tuple[tuple[int, str], ...]:
        """Return generation and host of each launch of a worker, oldest first."""
        before = [(each.generation, each.hosts[worker]) for each in self.past if worker < len(each.hosts)]
        now = [(self.generation, each.host) for each in self.workers if each.worker == worker]
        return tuple(dict.fromkeys([*before, *now]))

    def to_json(self) -> dict[str, Any]:
        """Return a form that `json` can write."""
        content = asdict(self) | {"state": self.state.value, "order": self.order.to_json()}
        content["spec"]["strategy"] = self.spec.strategy.value
        content["may_pass"] = content.pop("is_retryable")  # its key on disk and in the registry
        return {"format": FORMAT, **content}

    def write(self, directory: RunDirectory) -> None:
        """Write the record to disk atomically."""
        write_private(directory.record, json.dumps(self.to_json(), indent=1))

    @classmethod
    def from_json(cls, found: Any) -> RunRecord:
        """Create a record from the result of `to_json`.

        Raises:
            ValueError: This is not the record of a run.
        """
        try:
            end = found.get("end")
            return cls(
                **{
                    **known_fields(cls, found),
                    "spec": _spec(found["spec"]),
                    "state": RunState(found["state"]),
                    "order": Order.from_json(found.get("order", {})),
                    "is_retryable": found.get("may_pass"),
                    "workers": tuple(WorkerRecord(**known_fields(WorkerRecord, w)) for w in found["workers"]),
                    "hosts": tuple(_host(each) for each in found.get("hosts", ())),
                    "past": tuple(_past(each) for each in found.get("past", ())),
                    "topology": tuple(found.get("topology", ())),
                    "end": end and _end(end),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the record of a run: {error!r}") from error

    @classmethod
    def from_others(cls, found: Any) -> RunRecord:
        """Create a record from JSON that others may have written, and check its field types and limits.

        Raises:
            ValueError: This is not a valid record; the message names the wrong fields.
        """
        record = cls.from_json(found)
        wrong = list(islice(misfits(record), 5))
        if not wrong and (min(record.spec.num_workers - 1, record.spec.num_ps, record.generation) < 0):
            wrong = ["a number below the minimum"]
        if (
            not wrong
            and (record.spec.num_workers + record.spec.num_ps) * max(record.generation, 1) > _MOST_LAUNCHES
        ):
            wrong = ["more workers than a run can have"]
        if not wrong and any(not 0 <= each.worker < len(record.spec.roles) for each in record.workers):
            wrong = ["workers"]
        if not wrong and record.failed_worker not in (None, *range(len(record.workers))):
            wrong = ["failed_worker"]
        if wrong:
            raise ValueError(f"this is not the record of a run: {', '.join(wrong)}")
        return record

    @classmethod
    def read(cls, directory: RunDirectory) -> RunRecord:
        """Read a record from disk.

        An unchanged file is not parsed again, because programs that follow a run read its record 20 times a second.

        Raises:
            FileNotFoundError: The run does not exist, or does not exist yet.
            ValueError: The file is not a record.
        """
        path = directory.record
        stamp = stamp_of(path)  # before the content: a file that replaces this one has another stamp
        known_stamp, known = _known_records.get(path, ((), None))
        if known is not None and known_stamp == stamp:
            return known
        try:
            record = cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deep for a record") from error
        with _knowing:
            while len(_known_records) >= _MOST_KNOWN:
                del _known_records[next(iter(_known_records))]
            _known_records[path] = stamp, record
        return record


_knowing = threading.Lock()
_known_records: dict[Path, tuple[tuple[int, ...], RunRecord]] = {}


def _spec(found: Mapping[str, Any]) -> RunSpec:
    listed = {name: tuple(found[name]) for name in ("command", "args", "hosts", "tags") if name in found}
    ports = found.get("port_range")
    strategy = Strategy(found.get("strategy", "sync"))
    plain = {**known_fields(RunSpec, found), **listed}
    return RunSpec(**{**plain, "port_range": ports and tuple(ports), "strategy": strategy})


def _host(found: Mapping[str, Any]) -> HostRecord:
    listed = {name: tuple(found.get(name, ())) for name in ("addresses", "nodes")}
    return HostRecord(**{**known_fields(HostRecord, found), **listed})


def _past(found: Mapping[str, Any]) -> PastGeneration:
    return PastGeneration(**{**known_fields(PastGeneration, found), "hosts": tuple(found["hosts"])})


def _end(found: Mapping[str, Any]) -> WorkerEnd:
    return WorkerEnd(**{**known_fields(WorkerEnd, found), "last_lines": tuple(found.get("last_lines", ()))})


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A summary of a run for users.

    Attributes:
        state: LOST if no process owns the run any more.
        exit_code: 0, or the exit code of the first failing worker; None before there is one.
        hosts: Hosts of the workers, each once, in worker order.
        restarts: How often the workers were started again.
        directory: The run's files on this machine: worker-N.log, script/, files/.
        reason: Why the run failed, if the cause is not a worker's failure.
        waiting_for: What the run is waiting for now.
        detached: Whether the run's hosts own it, instead of the notebook.
        seen_at: When a file of a lost run was last written on this machine; None if there is none.
        left_until: Set when the owner has exited and left the run for another process: until when the workers keep
            running. Attaching takes the run over.
        workers: All tasks in numerical order, including those that are not workers.
        tasks: Names of the tasks: "worker 0", "ps 0", "chief".
        tags: Labels for finding and comparing runs.
    """

    id: str
    state: RunState
    exit_code: int | None
    cache: str
    hosts: tuple[str, ...]
    restarts: int
    started_at: datetime
    ended_at: datetime | None
    num_workers: int
    directory: Path
    workers: tuple[WorkerRecord, ...]
    reason: str | None
    waiting_for: str | None = None
    detached: bool = False
    seen_at: datetime | None = None
    left_until: datetime | None = None
    tasks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def has_told_training(self) -> bool:
        """Whether a worker has reported progress of a training since the workers were last started."""
        return any(worker.phase == TRAINING for worker in self.workers)

    @property
    def counted_workers(self) -> str:
        """The number of workers, as text."""
        return "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"


def read_info(
    directory: RunDirectory, has_owner: Callable[[RunRecord], bool] | None = None
) -> tuple[RunInfo, RunRecord]:
    """Read the summary and the record of a run from its directory on this machine.

    Args:
        directory: The run's directory.
        has_owner: Returns whether a process owns the run; by default, whether its lock on this machine is held.

    Raises:
        FileNotFoundError: The run does not exist, or does not exist yet.
        ValueError: The record is damaged.
    """
    record = RunRecord.read(directory)
    lives = has_owner(record) if has_owner else lock.is_held(directory.owner_lock)
    if not record.state.has_ended:
        # The owner writes the last record before it releases the lock. `has_owner` may also have fetched a newer one.
        record = RunRecord.read(directory)
    return info_of(record, directory.path, has_owner=lives), record


def info_of(record: RunRecord, path: Path, *, has_owner: bool) -> RunInfo:
    """Summarize a record for users. A run that has not ended and has no owner is lost."""
    state, left_until = record.state, None
    if not has_owner and not state.has_ended:
        left_until = record.left_until
        if left_until is None or time.time() > left_until:
            state = after(state, RunEvent.OWNER_GONE)
    return RunInfo(
        id=record.run_id,
        state=state,
        exit_code=record.exit_code,
        cache=record.spec.cache,
        hosts=tuple(dict.fromkeys(worker.host for worker in record.workers)),
        restarts=max(record.generation - 1, 0),
        started_at=_moment(record.started_at),
        ended_at=None if record.ended_at is None else _moment(record.ended_at),
        num_workers=record.spec.num_workers,
        tasks=tuple(role.name for role in record.spec.roles),
        tags=record.spec.tags,
        directory=path,
        workers=record.workers,
        reason=_why_lost(record) if state is RunState.LOST else record.reason,
        waiting_for=None if state.has_ended else (left_until and _why_left(record)) or record.waiting_for,
        detached=record.detached,
        seen_at=_last_written(path) if state is RunState.LOST else None,
        left_until=None if left_until is None else _moment(left_until),
    )


def _why_left(record: RunRecord) -> str:
    return (
        f"its owner, a process on {record.owner_host}, has ended, as when a kernel is restarted; its "
        f"workers run until {_clock(record)}; take it over with attach {record.run_id}"
    )


def _why_lost(record: RunRecord) -> str:
    what_next = f"start it again from its checkpoints with resume {record.run_id}"
    if record.left_until is not None:
        return (
            f"its owner, a process on {record.owner_host}, has ended, and nobody attached until "
            f"{_clock(record)}; see its result, or continue it, with attach {record.run_id}"
        )
    if record.detached:
        return (
            "none of its hosts has reported lately that it supervises the run; if that continues, "
            f"{what_next}"
        )
    return (
        f"its owner, process {record.owner_pid} on {record.owner_host}, has ended without notice, as when "
        "a kernel is killed or a machine is switched off; its workers end with it. To continue, "
        f"{what_next}"
    )


def _clock(record: RunRecord) -> str:
    return time.strftime("%H:%M:%S", time.localtime(record.left_until))


def _last_written(path: Path) -> datetime | None:
    times = []
    # The record may be a copy that was made just now, so it counts only if there are no logs.
    for file in list(path.glob("worker-*.log")) or [path / "run.json"]:
        with suppress(FileNotFoundError):
            times.append(file.stat().st_mtime)
    return _moment(max(times)) if times else None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def this_process() -> dict[str, Any]:
    """Return the record fields that name this process as the owner of a run."""
    return {"owner_pid": os.getpid(), "owner_host": socket.gethostname()}
