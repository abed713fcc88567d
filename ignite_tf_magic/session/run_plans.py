"""From what a person asks for to what a run is: which worker reads what, where."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.config.options import (
    Config,
    ConnectOptions,
    OnRebalance,
    timings_divisor,
    working_directory,
)
from ignite_tf_magic.errors import ConfigError, NoRoom
from ignite_tf_magic.launch.parcels import pack_job, pack_package
from ignite_tf_magic.runs.decisions import Reports
from ignite_tf_magic.runs.environments.environments import prepare_environments
from ignite_tf_magic.runs.environments.requirements import read_requirements
from ignite_tf_magic.runs.hosts.capacity import told_rooms
from ignite_tf_magic.runs.hosts.placement import PlacementRow
from ignite_tf_magic.runs.hosts.run_hosts import hosts_of_nodes, rooms_of, unusable_hosts
from ignite_tf_magic.runs.orders import Capacity
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.spec import check_script
from ignite_tf_magic.runs.supervision.manager import RunPlan
from ignite_tf_magic.runs.supervision.planning import AskRoom, Inspect, PlacedWorkers, check_room, find_plan
from ignite_tf_magic.runs.supervision.supervisor import Plan
from ignite_tf_magic.runs.timeouts import Timings

# What workers do when they have imported a module: it then knows igfs://.
_AFTER_IMPORT = {
    "random": "ignite_tf_magic.training.seeding:seed_random",
    "numpy": "ignite_tf_magic.training.seeding:seed_numpy",
    "tensorflow": "ignite_tf_magic.session.registration:register_or_warn",
    "fsspec": "ignite_tf_magic.session.registration:register_fsspec",
    "keras": "ignite_tf_magic.training.keras_hooks:install_keras",
    "tf_keras": "ignite_tf_magic.training.keras_hooks:install_tf_keras",
}
_PUSHED = "ignite_tf_magic.session.run_values:pushed"
# Where workers run when none can beside the data.
_HERE = HostRecord("localhost", python=sys.executable)
_NOT_PACKED = "this package was not packed for other machines when the run started"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run, on what, with how many workers.

    Attributes:
        script: Source of the script that every worker runs; empty when there is a command.
        script_name: What tracebacks call it.
        command: Program and arguments to run in a copy of `job_dir`; "python" is the workers' interpreter.
        job_dir: Directory or archive that the command needs.
        args: The script's arguments.
        start_timeout_s: How long hosts may take to start the workers' processes, and then workers to join others;
            a run for which that is not enough fails. None has no limit.
        name: First part of the run's id; the cache's name by default.
        python: Interpreter of the workers: a path on their hosts, or a name in the PATH there. By default the host's
            configured one, on this machine this process's.
        hosts: Only these get workers; empty allows all that hold partitions.
        max_restarts: So many failures in a row lead to a restart; None takes the configured number.
        deadline_s: How long the run may take in all; None takes the configured time.
        on_rebalance: What a change of the cache's primary owners leads to; None takes what is configured.
        num_gpus: Of each worker, for itself alone. With 0 workers see all GPUs of their host, as any program does.
        memory_bytes: Of each worker with all that it starts, at most: a worker that has more is ended, and its host has
            room for it only where runs with such limits leave so much. With 0 there is no limit.
        requirements: File of what the workers' interpreter is to have; it is then that of a virtual environment, built
            once on each host by uv or pip on `python`, and used again for the same words.
        wheels: Directory with all wheels for that, where hosts are to ask no package index.
        push: Variables that the script finds, by name; see `values` for what they may be.
        stop_on_nan: Whether a training whose loss is not a number any more fails, instead of going on.
        allow_partial: Whether it may train on what is left of a cache that lost rows, or on a side of a split cluster.
        wait: Whether the run waits, queued, for GPUs and ports that other runs hold; else it is refused.
        detach: Whether the run's hosts answer for it, so that it outlives this process.
        priority: Among runs that wait for room those with a higher one come first, then those that wait longer.
        survives_s: For how long its workers live on when this process ends in good order, as a kernel does that is
            restarted; `Session.take_over_run` goes on with it meanwhile. With 0 it ends with this process. Detached
            runs do not need it.
        env: More variables of the workers' environment. They stand in the run's record, which others read: no secrets.
    """

    cache: str
    script: str = ""
    num_workers: int = 1
    script_name: str = "cell"
    command: tuple[str, ...] = ()
    job_dir: Path | None = None
    args: tuple[str, ...] = ()
    start_timeout_s: float | None = 180.0
    name: str | None = None
    python: str | None = None
    hosts: tuple[str, ...] = ()
    max_restarts: int | None = None
    deadline_s: float | None = None
    on_rebalance: OnRebalance | None = None
    num_gpus: int = 0
    memory_bytes: int = 0
    requirements: Path | None = None
    wheels: Path | None = None
    push: Mapping[str, Any] = field(default_factory=dict, repr=False)
    stop_on_nan: bool = False
    allow_partial: bool = False
    wait: bool = False
    detach: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    survives_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that can be started, and what a person may want to know of it before.

    Attributes:
        rows: Who reads what, one for each worker.
        unusable: Why hosts that hold partitions get no worker, by host.
        is_far: Whether all workers run on this machine because no host with a node can be used.
        warnings: What is missing of cluster and cache, and is no reason to refuse.
    """

    run: RunPlan
    rows: tuple[PlacementRow, ...]
    unusable: Mapping[str, str]
    is_far: bool = False
    warnings: tuple[str, ...] = ()


def plan_run(
    client: Client, options: ConnectOptions, config: Config, request: RunRequest, reach: Reach
) -> Planned:
    """Decide all that a run needs to start. Reads the cache once, to count its rows.

    Raises:
        ScriptError: The script is not Python.
        ConfigError: Options contradict each other, or a node's host cannot be told.
        CacheNotFound: There is no such cache.
        LoadIncomplete, RowsLost, NodesMissing: Only a part of its rows is there.
        PlacementError: The workers cannot be spread so.
        NoRoom: The hosts have too few free GPUs or ports, or too little memory, and the run was not to wait.
        ParcelError: The job's directory cannot be packed.
    """
    _check_env(request.env)
    spec = _spec(config, request)
    if request.wheels is not None and request.requirements is None:
        raise ConfigError("--wheels says where what --requirements FILE lists comes from; give both")
    if request.push and spec.command and not spec.runs_script:
        raise ConfigError(
            f"--push gives variables to a Python script, and {spec.command[0]!r} is none; write them to igfs:// instead"
        )
    if not spec.command:
        check_script(request.script, request.script_name, spec.python)
    inspect, ask_room = partial(unusable_hosts, reach=reach), partial(rooms_of, reach)
    found = _find(client, options, config, spec, inspect, ask_room)
    if found.shortage is not None and not request.wait:
        raise NoRoom(f"{found.shortage}. Wait until there is room with --wait, or ask for fewer")
    package = pack_package() if any(host.ssh is not None for host in found.plan.hosts) else None
    job = pack_job(request.job_dir) if request.job_dir is not None else None
    spec = replace(spec, package=package.digest if package else None, job_parcel=job.digest if job else None)
    run = RunPlan(
        spec=spec,
        plan=found.plan,
        script=None if spec.command else request.script,
        connect=options,
        name=request.name,
        parcels=tuple(parcel for parcel in (package, job) if parcel is not None),
        topology=found.topology,
        timings=Timings().scaled(timings_divisor()),
        waiting_for=found.shortage,
    )
    are_here = [seat.host == _HERE.name for seat in found.plan.seats]
    is_far = bool(are_here) and all(are_here) and bool(found.unusable)
    return Planned(run, found.rows, found.unusable, is_far, found.warnings)


def with_environments(
    planned: Planned, request: RunRequest, reach: Reach, report: Callable[[str], None]
) -> RunPlan:
    """Have the environments of a run built where it may run, unless they are there; blocks until then.

    Raises:
        ConfigError: The requirements cannot be read.
        EnvironmentFailed: A host cannot be given its environment.
    """
    run = planned.run
    if request.requirements is None:
        return run
    requirements = read_requirements(request.requirements, request.wheels)
    hosts = [host for host in run.plan.hosts if host.name not in planned.unusable]
    if not request.detach:  # else every host answers for the run
        hosts = [host for host in hosts if host.name in (request.hosts or (host.name,))]
    ready = prepare_environments(hosts, requirements, reach, report, python=run.spec.python)
    known = {host.name: host for host in (*run.plan.hosts, *ready)}
    plan = replace(run.plan, hosts=tuple(known.values()))
    return replace(run, plan=plan, spec=replace(run.spec, requirements=requirements.name))


def plan_again(
    client: Client, options: ConnectOptions, config: Config, record: RunRecord, reports: Reports, reach: Reach
) -> Plan:
    """Find places for another generation of a run that this process owns."""
    told = told_rooms(reports)
    check_room(client, record, told)
    known = {host.name: host for host in record.hosts}

    def ask_room(hosts: Iterable[HostRecord], spec: RunSpec) -> dict[str, Capacity]:
        return {**told, **rooms_of(reach, [host for host in hosts if host.name not in known], spec)}

    def inspect(hosts: Iterable[HostRecord]) -> dict[str, str]:
        asked = list(hosts)
        if (
            record.spec.package is None
        ):  # it began on this machine alone, and its workers elsewhere need the package
            return {host.name: _NOT_PACKED for host in asked if host.ssh is not None}
        return unusable_hosts(asked, reach)

    return _find(client, options, config, record.spec, inspect, ask_room, known).placed()


def _find(
    client: Client,
    options: ConnectOptions,
    config: Config,
    spec: RunSpec,
    inspect: Inspect,
    ask_room: AskRoom,
    known: Mapping[str, HostRecord] = MappingProxyType({}),
) -> PlacedWorkers:
    def naming(nodes: Collection[Node]) -> dict[uuid.UUID, HostRecord]:
        return {node: equipped(host) for node, host in hosts_of_nodes(config, nodes).records.items()}

    def equipped(host: HostRecord) -> HostRecord:
        return replace(host, environment=known[host.name].environment if host.name in known else None)

    # Workers do not go through an ssh host to the cluster: where that is needed, none can run here.
    fallback = equipped(_HERE) if config.ssh.via is None else None
    return find_plan(
        client,
        spec,
        naming,
        inspect,
        ask_room,
        fallback,
        options,
    )


def _spec(config: Config, request: RunRequest) -> RunSpec:
    launch = config.launch
    on_rebalance = request.on_rebalance or launch.on_rebalance
    return RunSpec(
        cache=request.cache,
        num_workers=request.num_workers,
        script_name=request.script_name,
        command=request.command,
        args=request.args,
        cwd=str(working_directory()),
        python=_interpreter(request.python),
        after_import=_AFTER_IMPORT,
        variables_from=_PUSHED if request.push else "",
        environment={**request.env, **({"IGNITE_TF_STOP_ON_NAN": "1"} if request.stop_on_nan else {})},
        start_timeout_s=request.start_timeout_s,
        max_restarts=launch.max_restarts if request.max_restarts is None else request.max_restarts,
        deadline_s=launch.deadline_s if request.deadline_s is None else request.deadline_s,
        restarts_on_rebalance=on_rebalance is OnRebalance.RESTART,
        hosts=request.hosts,
        num_gpus=request.num_gpus,
        memory_bytes=request.memory_bytes,
        port_range=launch.ports,
        log_limit_bytes=launch.log_limit_bytes,
        waits_for_room=request.wait,
        allow_partial=request.allow_partial,
        priority=request.priority,
        survives_s=request.survives_s,
    )


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"--env {name}={value[:40]}: NAME=VALUE is needed, without NUL")
        if name == "TF_CONFIG" or name.startswith("IGNITE_"):
            raise ConfigError(f"--env {name}: the run itself says this to its workers; choose another name")


def _interpreter(python: str | None) -> str | None:
    """Make a relative path one of this machine; a name is looked for in each host's PATH, any other path there."""
    if python is None or python.startswith("~") or Path(python).name == python:
        return python
    return str(working_directory() / python)
