"""Turns a user's request into the plan of a run: which worker reads which partitions, on which host."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.errors import CacheNotFound, ConfigError, NoRoom
from ignite_tf_magic.launch.parcels import pack_job, pack_package
from ignite_tf_magic.runs.decisions import Reports
from ignite_tf_magic.runs.environments.environments import prepare_environments
from ignite_tf_magic.runs.environments.requirements import read_requirements
from ignite_tf_magic.runs.hosts.capacity import check_capacity, needs_capacity, told_capacities
from ignite_tf_magic.runs.hosts.counting import CountedCache, count_cache
from ignite_tf_magic.runs.hosts.run_hosts import (
    capacities_of,
    check_same_tensorflow,
    hosts_of_nodes,
    unusable_hosts,
)
from ignite_tf_magic.runs.orders import Capacity
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunOptions, RunRecord, RunSpec
from ignite_tf_magic.runs.roles import Strategy, check_roles, check_templates, choose_strategy
from ignite_tf_magic.runs.spec import check_script
from ignite_tf_magic.runs.supervision.counted_plans import plan_counted
from ignite_tf_magic.runs.supervision.manager import RunPlan
from ignite_tf_magic.runs.supervision.planning import LaunchFacts, Plan
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.session.provenance import made_with
from ignite_tf_magic.settings.options import (
    Config,
    ConnectOptions,
    OnRebalance,
    timeouts_divisor,
    working_directory,
)

# Functions that workers call after a module was imported. They register igfs://, seed random numbers, or add hooks.
_AFTER_IMPORT = {
    "random": "ignite_tf_magic.training.seeding:seed_random",
    "numpy": "ignite_tf_magic.training.seeding:seed_numpy",
    "tensorflow": "ignite_tf_magic.session.registration:prepare_tensorflow",
    "fsspec": "ignite_tf_magic.session.registration:register_fsspec",
    "jax": "ignite_tf_magic.training.rendezvous:install_jax",
    "torch.distributed": "ignite_tf_magic.training.rendezvous:install_torch",
    "keras": "ignite_tf_magic.training.keras_hooks:install_keras",
    "tf_keras": "ignite_tf_magic.training.keras_hooks:install_tf_keras",
}
COMMUNICATION = ("auto", "ring", "nccl")
_PUSHED = "ignite_tf_magic.session.run_values:pushed"
# The host of the workers if none can run beside the data.
_HERE = HostRecord("localhost", python=sys.executable)
_TAG = re.compile(r"[\w.:=@+/-]{1,64}")
_MOST_NOTE_CHARS = 2000
_NOT_PACKED = "this package was not packed for other machines when the run started"


@dataclass(frozen=True, slots=True)
class RunRequest(RunOptions):
    """A request for a run: what to run, on which cache, with how many workers.

    Attributes:
        cache: Name of the cache that is read, or of its SQL table.
        script: Source of the script that every worker runs; empty if there is a command.
        job_dir: Directory or archive that the command needs.
        include: Patterns of links in `job_dir` that point outside it; the targets of matching links are shipped.
        name: The part of the run's ID after its mark; the cache's name by default.
        max_restarts: Number of failures in a row after which the run is still restarted; None takes the configured
            number.
        on_rebalance: Reaction to a change of the cache's primary owners; None takes the configured one.
        requirements: Requirements file for the workers' interpreter. Each host builds a virtual environment from it
            once, with uv or pip on top of `python`, and reuses it for the same requirements.
        wheels: Directory with all wheels for `requirements`, for hosts that must not use a package index.
        push: Variables that the script finds, by name; see `values` for the supported types.
        stop_on_nan: Whether a training fails when its loss becomes NaN, instead of continuing.
        wait: Whether the run is queued for GPUs and ports that other runs hold; otherwise it is refused.
        detach: Whether the run's hosts supervise it, so that it outlives this process. It then needs no `survives_s`.
        strategy: "auto", or how the run's tasks work together: "sync", "async", "standalone" or "between". Automatic is
            "between" for arguments with its templates, such as {ps_hosts}, else "async" with parameter servers, else
            "sync".
        communication: How tensors travel between workers that take each step together: "ring", "nccl" between GPUs, or
            "auto", which lets TensorFlow choose.
        env: Additional environment variables of the workers. The run's record contains them and others can read it, so
            they must not be secrets.
        warm_s: How long, in seconds, the run's hosts keep processes with TensorFlow ready after the run, for the next
            run of this process; 0 keeps none. The configuration takes precedence. Detached runs keep none.
    """

    cache: str
    script: str = ""
    num_workers: int = 1
    job_dir: Path | None = None
    include: Sequence[str] = ()
    name: str | None = None
    max_restarts: int | None = None
    on_rebalance: OnRebalance | None = None
    requirements: Path | None = None
    wheels: Path | None = None
    push: Mapping[str, Any] = field(default_factory=dict, repr=False)
    stop_on_nan: bool = False
    wait: bool = False
    detach: bool = False
    strategy: str = "auto"
    communication: str = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    warm_s: float = 0.0


def plan_run(
    client: Client, options: ConnectOptions, config: Config, request: RunRequest, reach: Reach
) -> RunPlan:
    """Decide everything that a run needs to start; counts the rows of its cache.

    Raises:
        ScriptError: The script is not valid Python.
        ConfigError: Options contradict each other, or the host of a node cannot be determined.
        CacheNotFound: There is no such cache.
        CacheNameError: Several caches have SQL tables of that name.
        LoadIncomplete, RowsLost, NodesMissing: Some of the cache's rows are missing.
        PlacementError: The workers cannot be placed as requested.
        NoRoom: The hosts have too few free GPUs or ports, or too little memory, and the run was not to wait.
        ParcelError: The job's directory cannot be packed.
    """
    _check_env(request.env)
    _check_words(request)
    spec = _spec(config, request)
    if request.wheels is not None and request.requirements is None:
        raise ConfigError("--wheels DIR holds the packages that --requirements FILE lists; pass both")
    if request.push and spec.command and not spec.runs_script:
        raise ConfigError(
            f"--push sends variables to a Python script, not to {spec.command[0]!r}; write them to igfs:// instead"
        )
    if not spec.command:
        check_script(request.script, request.script_name, spec.python)
    spec = replace(spec, cache=_cache_meant(client, spec.cache))
    cache = count_cache(client, spec.cache, options, allow_partial=spec.allow_partial)
    plan = plan_counted(client, spec, _facts(options, config, spec, cache, reach))
    if plan.insufficient_capacity is not None and not request.wait:
        raise NoRoom(f"{plan.insufficient_capacity}. Wait until there is room with --wait, or ask for fewer")
    if request.requirements is None:
        _check_versions(plan, spec, reach)
    package = pack_package() if any(host.ssh is not None for host in plan.hosts) else None
    job = None
    if request.job_dir is not None:
        job = pack_job(request.job_dir, request.command, include=request.include)
    return RunPlan(
        spec=replace(
            spec, package=package.digest if package else None, job_parcel=job.digest if job else None
        ),
        plan=plan,
        script=None if spec.command else request.script,
        connect=options,
        name=request.name,
        parcels=tuple(parcel for parcel in (package, job) if parcel is not None),
        timeouts=Timeouts().scaled(timeouts_divisor()),
        warm_s=request.warm_s if config.launch.warm_s is None else config.launch.warm_s,
    )


def _cache_meant(client: Client, name: str) -> str:
    """Return the name of the cache that has this name or a SQL table of this name.

    Raises:
        CacheNameError: Several caches have tables of that name.
    """
    try:
        return client.find_cache(name).name
    except CacheNotFound:  # `count_cache` finds out whether nodes that hold it are missing
        return name


def with_environments(
    run: RunPlan, request: RunRequest, reach: Reach, report: Callable[[str], None]
) -> RunPlan:
    """Build the environments of a run on the hosts where it may run, unless they exist; blocks until they are ready.

    Raises:
        ConfigError: The requirements cannot be read.
        EnvironmentFailed: The environment cannot be built on a host.
    """
    if request.requirements is None:
        return run
    requirements = read_requirements(request.requirements, request.wheels)
    hosts = [host for host in run.plan.hosts if host.name not in run.plan.unusable]
    if not request.detach:  # every host of a detached run may supervise it
        hosts = [host for host in hosts if host.name in (request.hosts or (host.name,))]
    ready = prepare_environments(hosts, requirements, reach, report, python=run.spec.python)
    known = {host.name: host for host in (*run.plan.hosts, *ready)}
    plan = replace(run.plan, hosts=tuple(known.values()))
    return replace(run, plan=plan, spec=replace(run.spec, requirements=requirements.name))


def plan_again(
    client: Client, options: ConnectOptions, config: Config, record: RunRecord, reports: Reports, reach: Reach
) -> Plan:
    """Place another generation of a run that this process owns.

    Raises:
        NoRoom: There is no room at present.
    """
    spec, told = record.spec, told_capacities(reports)
    check_capacity(client, record, told)
    cache = count_cache(client, spec.cache, options, allow_partial=spec.allow_partial)
    facts = _facts(options, config, spec, cache, reach, {host.name: host for host in record.hosts}, told)
    plan = plan_counted(client, spec, facts).with_seats()
    if spec.requirements is None:
        _check_versions(plan, spec, reach)
    return plan


def _check_versions(plan: Plan, spec: RunSpec, reach: Reach) -> None:
    used = {seat.host for seat in plan.seats}
    check_same_tensorflow([host for host in plan.hosts if host.name in used], spec, reach)


def _facts(
    options: ConnectOptions,
    config: Config,
    spec: RunSpec,
    cache: CountedCache,
    reach: Reach,
    known: Mapping[str, HostRecord] = MappingProxyType({}),
    told: Mapping[str, Capacity] = MappingProxyType({}),
) -> LaunchFacts:
    """Ask hosts for the facts that a launch needs.

    Hosts in `known`, those of an earlier launch, are not asked for their capacities; `told` contains these.
    """

    def equipped(host: HostRecord) -> HostRecord:
        return replace(host, environment=known[host.name].environment if host.name in known else None)

    named = hosts_of_nodes(config, cache.nodes.values(), options).records
    facts = LaunchFacts(
        cache,
        by_node={node: equipped(host) for node, host in named.items()},
        # Workers do not connect to the cluster through an SSH host. If one is needed, no worker can run here.
        fallback=equipped(_HERE) if config.ssh.via is None else None,
        here=equipped(_HERE),
        draw=random.random(),  # noqa: S311 - which host is no secret
    )
    asked = facts.candidates(spec)
    if known and spec.package is None:
        # The run started on this machine alone. Workers on other machines would need the package.
        unusable = {host.name: _NOT_PACKED for host in asked if host.ssh is not None}
    else:
        unusable = unusable_hosts(asked, reach)
    facts = replace(facts, unusable=unusable)
    if not needs_capacity(spec):
        return facts
    untold = [host for host in facts.usable(spec) if host.name not in known]
    return replace(facts, capacities={**told, **capacities_of(reach, untold, spec)})


def _spec(config: Config, request: RunRequest) -> RunSpec:
    launch, arguments = config.launch, (*request.command, *request.args)
    strategy = choose_strategy(request.strategy, request.num_ps, arguments)
    check_roles(strategy, request.num_ps, request.has_evaluator, request.chief)
    _check_communication(request.communication, strategy)
    request = _with_tunnel(request, strategy) if request.tunnel or launch.tunnel else request
    if strategy is Strategy.BETWEEN:
        check_templates(arguments)
    on_rebalance = request.on_rebalance or launch.on_rebalance
    request = replace(
        request,
        python=_interpreter(request.python),
        deadline_s=launch.deadline_s if request.deadline_s is None else request.deadline_s,
    )
    return RunSpec(
        request.cache,
        request.num_workers,
        strategy=strategy,
        **request.options(),
        cwd=str(working_directory()),
        after_import=_AFTER_IMPORT,
        variables_from=_PUSHED if request.push else "",
        environment={**request.env, **_told_to_workers(request)},
        max_restarts=launch.max_restarts if request.max_restarts is None else request.max_restarts,
        restarts_on_rebalance=on_rebalance is OnRebalance.RESTART,
        port_range=launch.ports,
        log_limit_bytes=launch.log_limit_bytes,
        waits_for_room=request.wait,
        made_with=made_with(working_directory()),
    )


def _told_to_workers(request: RunRequest) -> dict[str, str]:
    said = {"IGNITE_TF_COMMUNICATION": request.communication} if request.communication != "auto" else {}
    return said | ({"IGNITE_TF_STOP_ON_NAN": "1"} if request.stop_on_nan else {})


def _with_tunnel(request: RunRequest, strategy: Strategy) -> RunRequest:
    """Return the request of a run whose network traffic this process carries.

    Raises:
        ConfigError: The request has options that exclude a tunnel.
    """
    if request.detach:
        raise ConfigError(
            "--tunnel, or tunnel = true in [launch]: this process carries the traffic between the run's hosts, so it "
            "must own the run. Leave --detach out; in a shell pass --tunnel, and the run ends with the command"
        )
    if request.communication == "nccl":
        raise ConfigError(
            "--communication nccl: NCCL chooses its own ports, which --tunnel cannot forward; use ring"
        )
    is_sync = strategy is Strategy.SYNC
    return replace(
        request, tunnel=True, survives_s=0.0, communication="ring" if is_sync else request.communication
    )


def _check_communication(way: str, strategy: Strategy) -> None:
    if way not in COMMUNICATION:
        raise ConfigError(
            f"--communication {way}: {', '.join(COMMUNICATION[:-1])} or {COMMUNICATION[-1]} is needed"
        )
    if way != "auto" and strategy is not Strategy.SYNC:
        raise ConfigError(
            f"--communication {way} needs workers that take each step together, and those of --strategy "
            f"{strategy.value} do not; leave it out"
        )


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"--env {name}={value[:40]}: NAME=VALUE is needed, without NUL")
        if name == "TF_CONFIG" or name.startswith("IGNITE_"):
            raise ConfigError(
                f"--env {name}: the run itself sets this variable for its workers; choose another name"
            )


def _check_words(request: RunRequest) -> None:
    for tag in request.tags:
        if not _TAG.fullmatch(tag):
            raise ConfigError(
                f"--tag {tag[:40]!r}: a tag is a word of letters, digits and . _ - : = @ + / (64 at most)"
            )
    if len(request.note) > _MOST_NOTE_CHARS:
        raise ConfigError(
            f"--note has {len(request.note):,} characters; {_MOST_NOTE_CHARS:,} at most are kept"
        )


def _interpreter(python: str | None) -> str | None:
    """Make a relative path absolute on this machine. Hosts resolve names, by their PATH, and all other paths."""
    if python is None or python.startswith("~") or Path(python).name == python:
        return python
    return str(working_directory() / python)
