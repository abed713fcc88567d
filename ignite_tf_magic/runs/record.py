"""The record of a run: what is written down, and what others see of it.

Strict when written, tolerant when read: unknown fields of a newer version are passed over, missing ones
of an older one have defaults.
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
    """What a person asks for and its hosts go by as it stands.

    Attributes:
        python: Interpreter of the workers: a path on their hosts, or a name in the PATH there. None is each host's
            configured one, on the machine where the run was started that of its starter.
        deadline_s: How long the run may take in all; None takes the configured time, and has no limit where none is.
        script_name: What tracebacks call the script.
        command: Program and arguments that each worker runs, in a copy of the job's directory, instead of a script;
            "python" is the workers' interpreter.
        args: The script's arguments.
        start_timeout_s: How long hosts may take to start the workers' processes; a run for which that is not enough
            fails. Workers of several that have not joined the first of them for as long are told of. None has no limit.
        hosts: Only these get workers; empty allows all that hold partitions.
        num_gpus: Of each worker, for itself alone. With 0 workers see all GPUs of their host, as any program does.
        memory_bytes: Of each worker with all that it starts, at most: a worker that has more is ended, and its host has
            room for it only where runs with such limits leave so much. With 0 there is no limit.
        allow_partial: Whether it may train on what is left of a cache that lost rows, or on a side of a split cluster.
        priority: Among runs that wait for room those with a higher one come first, then those that wait longer.
        survives_s: For how long its workers live on when the process that owns it ends in good order, as a kernel does
            that is restarted, so that another one may take it over. With 0 they end with it.
        num_ps: Parameter servers beside the workers.
        chief: Where the script runs that drives the workers: a host, "here" for this machine, "random" for any host
            that the run may use; empty for worker 0's.
        has_evaluator: Whether one more task runs the script, to evaluate what the others save.
        compat: Whether workers may import `tensorflow.contrib.ignite`, which TensorFlow had until 1.15.
        finish_timeout_s: So long an evaluator may go on when the script has succeeded.
        tags: Words by which it is found and compared.
        note: What its starter wants to remember of it.
        tunnel: Whether its tasks reach each other through SSH alone, carried by the process that owns the run, and
            their ports are kept to their hosts; where that cannot be it does not start. It then needs no `survives_s`.
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
        """Return these alone, by their names."""
        return {each.name: getattr(self, each.name) for each in fields(RunOptions)}


@dataclass(frozen=True, slots=True)
class RunSpec(RunOptions):
    """What a run was asked for; the same for its whole life.

    Attributes:
        strategy: How its tasks work together.
        cwd: Directory of workers on the machine where the run was started; elsewhere they have one of their own.
        package: Digest of the parcel with this package for hosts of other machines.
        job_parcel: Digest of the parcel with the job's directory.
        after_import: Functions, as "package.module:function", that workers call when a module has been imported.
        variables_from: A function, named likewise, whose dict a script finds as variables; empty for none.
        environment: More variables of the workers' processes.
        max_restarts: So many failures in a row lead to a restart.
        restarts_on_rebalance: Whether a change of the cache's primary owners restarts the workers.
        port_range: Where TensorFlow's servers listen, both ends included; None takes any free port.
        log_limit_bytes: Of each worker's output so much is kept at least half; None keeps all.
        requirements: Name of the file that says what the workers' environments have; None: they have none of their own.
        waits_for_room: Whether it waits for GPUs and ports that other runs hold.
        made_with: The commit of its directory and versions, where it was started, by their names.
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
        """Whether its workers run Python code in their own process, not a program beside it."""
        return not self.command or is_python_script(self.command)

    @property
    def roles(self) -> tuple[Role, ...]:
        """What each of its tasks does, in their order."""
        return roles_of(self.strategy, self.num_workers, self.num_ps, self.has_evaluator)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host that a run may use, and how it is reached.

    Attributes:
        ssh: Its name for SSH; None for the machine on which the run was started.
        root: Directory of this package's state there.
        python: Interpreter of workers there.
        agent_python: Interpreter of the agent there, 3.8 or later.
        addresses: Those that tell it from other hosts, best first.
        tf_address: By which other hosts reach it, where that was configured.
        environment: Directory of the virtual environment whose interpreter runs the workers there; None uses `python`.
        nodes: Ids of those of its nodes that no address tells, as they were when the workers were placed.
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
    """One task of a run, in its latest generation.

    Attributes:
        worker: Its number among all tasks, of which the workers are the first.
        rows: Rows of its partitions.
        pid: Its process on its host, None before it was started.
        joined_at: When its TensorFlow server was first seen to listen; seconds since the epoch. None before, and in
            scripts that need no server.
        exit_code: None while it runs; 128 + N after signal N.
        signal: Name of the signal that ended it.
        ended_at: When the script ended where it told so, else the process; seconds since the epoch.
        ended_by_owner: Whether it was ended for the run's sake, not by its own fault.
        respawns: How often its process was started again while the others went on.
        phase: What it does, of `runs.phases`; empty before it has told.
        phase_at: Since when, as far as was seen; seconds since the epoch.
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
    """Workers that were ended so that others could be started in their place.

    Attributes:
        hosts: Host of each worker, in their order.
        cause: Why they were ended, in words.
    """

    generation: int
    hosts: tuple[str, ...]
    cause: str
    ended_at: float


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its owner writes it down.

    Attributes:
        owner_host: Machine of the process that answers for the run.
        detached: Whether the run's hosts answer for it themselves.
        supervisor: Of a detached run, the host that decides.
        order: What its hosts have been asked for last.
        hosts: All that the run may use, or has used.
        past: Earlier generations, oldest first.
        topology: Ignite's nodes when the run started, each as a "host:port" that it lists.
        owners: Fingerprint of the cache's primary owners for which the order was made.
        num_failures: Failures in a row.
        failed_worker: The worker whose failure is shown first.
        end: How that worker ended.
        reason: Why the run failed or restarts, where no worker can tell.
        is_retryable: Whether what failed may succeed another time; None when only the workers' ends tell.
        waiting_for: What keeps the run from going on now.
        left_until: Its owner has left it; until then its workers live on for whoever takes it over. Seconds since the
            epoch.
        first_started_at: Of a run that was resumed, when it was started first.
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
        """Counts the launches of this run's workers, from 1."""
        return self.order.generation

    def with_worker(self, worker: WorkerRecord) -> RunRecord:
        """Replace what is known of one worker."""
        others = {each.worker: each for each in self.workers} | {worker.worker: worker}
        return replace(self, workers=tuple(others[index] for index in sorted(others)))

    def happened(self, event: RunEvent, **changes: Any) -> RunRecord:
        """Go to the state that follows."""
        return replace(self, state=after(self.state, event), **changes)

    def host(self, name: str) -> HostRecord:
        """Return a host of the run by its name."""
        return next(host for host in self.hosts if host.name == name)

    def interpreter_on(self, name: str) -> str:
        """Return the interpreter of the workers on a host."""
        host = self.host(name)
        return f"{host.environment}/bin/python" if host.environment else self.spec.python or host.python

    def role(self, worker: int) -> Role:
        """Return what a task does, by its number."""
        return self.spec.roles[worker]

    @property
    def has_private_ports(self) -> bool:
        """Whether nobody but the tasks' own host needs to reach them, so that nobody else may."""
        return self.spec.tunnel or len(self.order.hosts) == 1

    @property
    def cluster_spec(self) -> dict[str, list[str]]:
        """Where TensorFlow's servers listen, by their jobs; empty before that is known."""
        addresses = self.order.addresses
        return cluster_spec(self.spec.strategy, self.spec.roles, addresses) if addresses else {}

    def hosts_of(self, worker: int) -> tuple[tuple[int, str], ...]:
        """Generation and host of each launch of a worker, oldest first."""
        before = [(each.generation, each.hosts[worker]) for each in self.past if worker < len(each.hosts)]
        now = [(self.generation, each.host) for each in self.workers if each.worker == worker]
        return tuple(dict.fromkeys([*before, *now]))

    def to_json(self) -> dict[str, Any]:
        """Return a form that `json` writes."""
        content = asdict(self) | {"state": self.state.value, "order": self.order.to_json()}
        content["spec"]["strategy"] = self.spec.strategy.value
        content["may_pass"] = content.pop("is_retryable")  # its key on disk and in the registry
        return {"format": FORMAT, **content}

    def write(self, directory: RunDirectory) -> None:
        """Write the record whole."""
        write_private(directory.record, json.dumps(self.to_json(), indent=1))

    @classmethod
    def from_json(cls, found: Any) -> RunRecord:
        """Read what `to_json` gave.

        Raises:
            ValueError: It is no record.
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
        """Read what others may have written in the place of what `to_json` gave.

        Raises:
            ValueError: It is no record that a run can have; says which fields are to blame.
        """
        record = cls.from_json(found)
        wrong = list(islice(misfits(record), 5))
        if not wrong and (min(record.spec.num_workers - 1, record.spec.num_ps, record.generation) < 0):
            wrong = ["a number below the least"]
        if (
            not wrong
            and (record.spec.num_workers + record.spec.num_ps) * max(record.generation, 1) > _MOST_LAUNCHES
        ):
            wrong = ["more workers than any run has had"]
        if not wrong and any(not 0 <= each.worker < len(record.spec.roles) for each in record.workers):
            wrong = ["workers"]
        if not wrong and record.failed_worker not in (None, *range(len(record.workers))):
            wrong = ["failed_worker"]
        if wrong:
            raise ValueError(f"this is not the record of a run: {', '.join(wrong)}")
        return record

    @classmethod
    def read(cls, directory: RunDirectory) -> RunRecord:
        """Read a record.

        A file that has not changed since is not parsed again: who follows a run asks 20 times a second.

        Raises:
            FileNotFoundError: There is no run there, or not yet.
            ValueError: The file is not a record.
        """
        path = directory.record
        stamp = stamp_of(path)  # taken first: what replaces the file meanwhile has another one
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
    """What is known of a run.

    Attributes:
        state: LOST when nobody answers for the run any more.
        exit_code: The run's: 0, or that of the first failing worker; None while it has none.
        hosts: Where its workers run, each once, in the order of the workers.
        restarts: How often its workers were started again.
        directory: Its files on this machine: worker-N.log, script/, files/.
        reason: Why it failed, where no worker can tell.
        waiting_for: What keeps it from going on now.
        detached: Whether its hosts answer for it, not the notebook.
        seen_at: Of a lost run, when something of it was last written here; None when nothing is here.
        left_until: Of a run whose owner has left it, until when its workers live on: who attaches takes it over.
        workers: All tasks, also those that are no workers, by their numbers.
        tasks: Their names: "worker 0", "ps 0", "chief".
        tags: Words by which it is found and compared.
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
        """Whether workers have told something of a training since they were started last."""
        return any(worker.phase == TRAINING for worker in self.workers)

    @property
    def counted_workers(self) -> str:
        """How many workers it has, in words."""
        return "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"


def read_info(
    directory: RunDirectory, has_owner: Callable[[RunRecord], bool] | None = None
) -> tuple[RunInfo, RunRecord]:
    """Read what is known of a run from its directory on this machine.

    Args:
        directory: The run's.
        has_owner: Whether somebody answers for it; by default whether its lock here is held.

    Raises:
        FileNotFoundError: There is no run there, or not yet.
        ValueError: Its record is damaged.
    """
    record = RunRecord.read(directory)
    lives = has_owner(record) if has_owner else lock.is_held(directory.owner_lock)
    if not record.state.has_ended:
        # An owner writes the last record, then lets go of the lock; who asks for it may find a newer record, too.
        record = RunRecord.read(directory)
    return info_of(record, directory.path, has_owner=lives), record


def info_of(record: RunRecord, path: Path, *, has_owner: bool) -> RunInfo:
    """Sum a record up for people; a run without an owner that has not ended is lost."""
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
        f"the process on {record.owner_host} that owned it has ended, as a kernel that is restarted; its workers live "
        f"on until {_clock(record)}; take it over with attach {record.run_id}"
    )


def _why_lost(record: RunRecord) -> str:
    what_next = f"start it again from its checkpoints with resume {record.run_id}"
    if record.left_until is not None:
        return (
            f"the process on {record.owner_host} that owned it has ended, and nobody attached until {_clock(record)}; "
            f"see what became of it, and go on, with attach {record.run_id}"
        )
    if record.detached:
        return f"none of its hosts has said for a while that it answers for it; if that stays so, {what_next}"
    return (
        f"process {record.owner_pid} on {record.owner_host}, which owned it, has ended without a word, as a kernel "
        f"that is killed or a machine that is switched off does; its workers end with it. To go on, {what_next}"
    )


def _clock(record: RunRecord) -> str:
    return time.strftime("%H:%M:%S", time.localtime(record.left_until))


def _last_written(path: Path) -> datetime | None:
    times = []
    # The record may be a copy that was made just now; without output it is all that there is.
    for file in list(path.glob("worker-*.log")) or [path / "run.json"]:
        with suppress(FileNotFoundError):
            times.append(file.stat().st_mtime)
    return _moment(max(times)) if times else None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def this_process() -> dict[str, Any]:
    """Name this process as a run's owner."""
    return {"owner_pid": os.getpid(), "owner_host": socket.gethostname()}
