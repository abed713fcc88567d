"""What a person does: connect, start a script beside the data, watch it, stop it.

The notebook and the shell are thin views of this module; they take no decisions of their own.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ignite_tf_magic import embedded
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.client.sql import QueryResult, SqlClient
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.cluster import manager
from ignite_tf_magic.cluster.decisions import Reports
from ignite_tf_magic.cluster.failure import Failure
from ignite_tf_magic.cluster.manager import RunPlan, Surroundings
from ignite_tf_magic.cluster.output import OutputChunk
from ignite_tf_magic.cluster.publisher import Publisher
from ignite_tf_magic.cluster.reach import Reach
from ignite_tf_magic.cluster.record import RunInfo, RunRecord, WorkerRecord
from ignite_tf_magic.cluster.registry import Registry
from ignite_tf_magic.cluster.runs import Run, StopKind, StopOutcome
from ignite_tf_magic.cluster.states import RunState
from ignite_tf_magic.cluster.supervisor import Plan
from ignite_tf_magic.cluster.topology import TopologyWatch, connect_to_majority, connect_to_most
from ignite_tf_magic.config import (
    Config,
    ConnectOptions,
    OnRebalance,
    embedded_endpoints,
    load_config_file,
    read_config,
    state_dir,
    timings_divisor,
)
from ignite_tf_magic.diagnosis import Check, Diagnosis, Health
from ignite_tf_magic.doctor import examine
from ignite_tf_magic.embedded import ClusterStopped, EmbeddedCluster, EmbeddedNode, EmbeddedOptions
from ignite_tf_magic.errors import CacheExists, IgniteTfError
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.launch.jobs import LinkTimings
from ignite_tf_magic.launch.ssh import SshOptions
from ignite_tf_magic.launch.tunnels import Tunnel
from ignite_tf_magic.placement import PlacementRow
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.run_files import Pruned, RunFiles, prune_runs
from ignite_tf_magic.run_index import Listed, RunIndex
from ignite_tf_magic.run_plans import Planned, RunRequest, plan_again, plan_run, with_environments
from ignite_tf_magic.sources import Columns, read_source, value_type_name
from ignite_tf_magic.submission import submit

__all__ = [
    "CacheInfo",
    "Check",
    "ClusterStopped",
    "Diagnosis",
    "EmbeddedCluster",
    "EmbeddedNode",
    "EmbeddedOptions",
    "Failure",
    "Health",
    "Listed",
    "LoadOutcome",
    "OnRebalance",
    "OutputChunk",
    "PlacementRow",
    "Planned",
    "Pruned",
    "QueryResult",
    "Run",
    "RunInfo",
    "RunRecord",
    "RunRequest",
    "RunState",
    "Session",
    "StopKind",
    "StopOutcome",
    "WorkerRecord",
    "diagnose",
    "get_run",
    "list_runs",
    "load",
    "local_down",
    "local_status",
    "local_up",
    "open_session",
    "start_embedded",
    "stop_run",
]

Report = Callable[[str], None]
LoadProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What is worth knowing of a cache at a glance.

    Attributes:
        mode: "partitioned" or "replicated".
        tables: Its SQL tables as a statement names them: "MNIST".MNIST.
    """

    name: str
    rows: int
    mode: str
    backups: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What was loaded.

    Attributes:
        seconds: Time for writing; reading the source is not counted.
    """

    cache: str
    rows: int
    backups: int
    seconds: float

    def __str__(self) -> str:
        copies = {0: "without backups", 1: "with 1 backup"}.get(self.backups, f"with {self.backups} backups")
        return f"{self.rows:,} rows in cache {self.cache} ({copies}), written in {self.seconds:.1f} s"


def open_session(
    options: ConnectOptions | None = None,
    *,
    report: Report,
    config: Path | None = None,
    via: str | None = None,
) -> Session:
    """Connect to a cluster: the one given, else the configured one, else the embedded one.

    The embedded cluster is started when it does not run, and then ends when idle. Close the session, or use
    it as a context manager.

    Args:
        options: How to reach a cluster; None is the configured or the embedded one.
        config: A file like ignite-tf.toml, or Ignite's Spring XML; None looks for the first.
        via: SSH host through which the cluster and its hosts are reached, when only that one can be; the
            configured one by default. Where no cluster is named, it is the one with a node on that host.
        report: Called with one line at a time about what takes long.

    Raises:
        ConnectionFailed: No node answers.
        HostError: The host to go through cannot be used.
        EmbeddedError: No cluster is configured and the embedded one cannot be started.
    """
    found = _configuration(config, via)
    for note in found.notes:
        report(note)
    options = options or found.cluster
    if options is None:
        options = ConnectOptions() if found.ssh.via else start_embedded(report)
    options = _through(found, options)
    return Session(options, connect_to_most(options), report, found)


def _through(config: Config, options: ConnectOptions) -> ConnectOptions:
    """Have the cluster reached through the ssh host that the configuration names, if it does."""
    if config.ssh.via is None:
        return options
    reach = reach_of(config)
    return replace(options, dial=Tunnel(config.ssh.via, reach.ssh, reach.timings).connect)


def start_embedded(report: Report) -> ConnectOptions:
    """Start the embedded cluster until it is idle, unless it runs; says how to reach it.

    Raises:
        EmbeddedError: It cannot be started.
    """
    running = embedded.status()
    is_up = running is not None and running.ready and all(node.alive for node in running.nodes)
    up = embedded.ensure_up(lifetime=embedded.Lifetime.UNTIL_IDLE, report=_unsaid if is_up else report)
    return up.cluster.connect_options


def _unsaid(line: str) -> None:
    del line


class Session(Closing):
    """A connected cluster and the runs of this user. Closing it leaves runs alone."""

    def __init__(
        self, options: ConnectOptions, client: Client, report: Report, config: Config | None = None
    ) -> None:
        self.options = options
        self.client = client
        self.report = report
        self.config = config or Config()
        self._copies: list[RunFiles] = []

    def close(self) -> None:
        """Close the connection. Runs go on: they belong to this process, not to the session."""
        self.client.close()

    @property
    def embedded_cluster(self) -> EmbeddedCluster | None:
        """The embedded cluster, when this session is connected to it."""
        cluster = embedded.status()
        return cluster if cluster and cluster.connect_options == self.options else None

    def caches(self) -> list[CacheInfo]:
        """List the caches by name. Asks the cluster about each of them."""
        tables: dict[str, list[str]] = {}
        listed = self.query("SELECT CACHE_NAME, SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES ORDER BY TABLE_NAME")
        for cache_name, schema, table in listed.rows:
            tables.setdefault(cache_name, []).append(f"{_sql_name(schema)}.{_sql_name(table)}")
        found = []
        for name in self.client.cache_names():
            cache = self.client.cache(name)
            config = cache.config()
            mode = config.mode.name.lower()
            info = CacheInfo(name, cache.size(), mode, config.backups, tuple(tables.get(name, ())))
            found.append(info)
        return found

    def query(self, statement: str, args: Sequence[Any] = (), limit: int | None = None) -> QueryResult:
        """Run one SQL statement; see `SqlClient.query`."""
        return SqlClient(self.options).query(statement, args, limit)

    def load(
        self,
        cache: str,
        source: Any,
        *,
        key: str | None = None,
        split: str | None = None,
        backups: int | None = None,
        replace: bool = False,
        progress: LoadProgress | None = None,
    ) -> LoadOutcome:
        """Create a cache from data; blocks until all rows are written.

        Args:
            cache: Name of the cache; the SQL table is called the same.
            source: A file, a known data set, a DataFrame or arrays; `sources.read_source` lists them.
            key: Column whose values become the keys; rows are numbered from 0 by default.
            split: "train" or "test" of a divided source.
            backups: Copies of each row beside the first; by default 1 when there is more than one node.
            replace: Destroy a cache of that name first.
            progress: Told the rows written so far and all rows, from other threads, one at a time.

        Raises:
            SourceError: The data cannot be read or has no form in a cache.
            CacheExists: The cache has rows and `replace` is not set.
        """
        columns = read_source(source, key=key, split=split)
        began = time.monotonic()
        if cache in self.client.cache_names():
            rows = self.client.cache(cache).size()
            if rows and not replace:
                raise CacheExists(cache, rows)
            self.client.destroy_cache(cache)
        if backups is None:
            backups = int(len(self.client.nodes()) > 1)
        encoder = self._encoder(cache, columns)
        has_text_keys = columns.keys is not None and columns.keys.dtype == object
        config = table_config(cache, encoder, backups, text_keys=has_text_keys)
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            if progress:
                progress(done, len(columns))

        rows = put_rows(self.client.create_cache(config), encoder, advance)
        return LoadOutcome(cache, rows, backups, time.monotonic() - began)

    def _encoder(self, cache: str, columns: Columns) -> RowEncoder:
        """Encode rows with a type of the cache's name, or that and a number when it means another type."""
        keys = np.arange(len(columns)) if columns.keys is None else columns.keys
        name = value_type_name(cache)
        for number in itertools.count(2):
            encoder = RowEncoder(name, columns.values, keys)
            fields = encoder.binary_type.fields
            known = self.client.types.find(encoder.binary_type.type_id, refresh=True)
            if known is None or all(known.fields.get(each, fields[each]) == fields[each] for each in fields):
                break
            name = f"{value_type_name(cache)}_{number}"
        return encoder

    def default_num_workers(self) -> int:
        """Give one worker for each node of the cluster."""
        return len(self.client.nodes())

    def plan_run(self, request: RunRequest) -> Planned:
        """Decide where a run's workers would run, and start nothing. Reads the cache once, to count its rows.

        Raises:
            ScriptError: The script is not Python.
            CacheNotFound: There is no such cache.
            PlacementError: The workers cannot be spread so, or, as NoRoom, cannot now.
            LaunchError: The workers' interpreter cannot be started.
        """
        return self._plan_run(replace(request, wait=False), reach_of(self.config))

    def _plan_run(self, request: RunRequest, reach: Reach) -> Planned:
        planned = self._plan_where_most_nodes_are(request, reach)
        for host, reason in planned.unusable.items():
            self.report(f"{host} gets no worker, and its partitions are read over the network: {reason}")
        if planned.is_far:
            self.report("no host with data can be used: all workers run on this machine")
        return planned

    def _plan_where_most_nodes_are(self, request: RunRequest, reach: Reach) -> Planned:
        try:
            planned = plan_run(self.client, self.options, self.config, request, reach)
        except IgniteTfError:
            if not self._finds_more_nodes():
                raise
        else:
            if not self._finds_more_nodes():
                return planned
        return plan_run(self.client, self.options, self.config, request, reach)

    def _finds_more_nodes(self) -> bool:
        """Go over to the rest of the cluster, if the node that is asked here was cut off from it meanwhile."""
        num_seen = len(self.client.nodes())
        if 2 * num_seen > len(self.options.endpoints):
            return False
        found = connect_to_most(self.options)
        if len(found.nodes()) <= num_seen:
            found.close()
            return False
        self.client.close()
        self.client = found
        return True

    def start_run(self, request: RunRequest) -> Run:
        """Start a script on workers, each with partitions of its own; returns when their processes run.

        Reads the cache once, to count its rows. The run ends with this process, unless it was detached; follow it
        with `Run.follow`.

        Raises:
            ScriptError: The script is not Python.
            CacheNotFound: There is no such cache.
            PlacementError: Fewer partitions hold rows than workers were asked for, or, as NoRoom, the hosts have too
                few free GPUs or ports.
            EnvironmentFailed: A host cannot be given what the requirements say.
            LaunchError: The workers cannot be started.
        """
        with reach_of(self.config).keeping() as reach:
            plan = with_environments(self._plan_run(request, reach), request, reach, self.report)
            if plan.waiting_for is not None:
                self.report(f"the run is queued: {plan.waiting_for}")
            if request.detach:
                registry = partial(Registry, partial(connect_to_majority, self.options, plan.topology))
                return submit(plan, state_dir(), reach, registry, timings_divisor())
            run = manager.start_run(plan, runs_dir(), reach, partial(self._surroundings, plan, reach))
        files = RunFiles(run, self.options, self.report)
        files.start()
        self._copies.append(files)
        return run

    def _surroundings(self, plan: RunPlan, reach: Reach, run_id: str) -> Surroundings:
        """Connect a run that this process owns to the cluster, for as long as it lasts."""
        options, config = self.options, self.config
        connect_again = partial(connect_to_majority, options, plan.topology)
        publisher = Publisher(Registry(connect_again, timings=plan.timings), run_id, plan.timings)
        topology = TopologyWatch(connect_again, plan.spec.cache, plan.topology)

        def plan_anew(record: RunRecord, reports: Reports) -> Plan:
            with connect_again() as client:
                return plan_again(client, options, config, record, reports, reach)

        def close() -> None:
            topology.close()
            publisher.close()

        return Surroundings(
            plan_anew, lambda: topology.sight, publisher.publish, lambda: publisher.stop_asked, close
        )

    def wait_for_copies(self, timeout_s: float) -> None:
        """Wait until the output of runs that have ended is in igfs; it is copied every two seconds."""
        for files in self._copies:
            files.wait(timeout_s)

    def prune(
        self, *, keep: int = 20, older_than: timedelta | None = None, dry_run: bool = False
    ) -> list[Pruned]:
        """Remove runs that have ended, with their files in igfs, here and on their hosts; see `prune_runs`."""
        with (
            reach_of(self.config).keeping() as reach,
            Volume(lambda: self.options) as volume,
            Registry(self.client) as registry,
        ):
            index = run_index(self.config, self.options, reach)

            def forget(run_id: str) -> None:
                for kept in index.forget(run_id):
                    self.report(kept)
                registry.remove(run_id)

            return prune_runs(
                volume,
                index.runs(include_ended=True).runs,
                forget,
                keep=keep,
                older_than=older_than,
                dry_run=dry_run,
            )

    def runs(self, *, include_ended: bool = False) -> list[RunInfo]:
        """List the runs of this machine and of the cluster, oldest first."""
        return list(run_index(self.config, self.options).runs(include_ended=include_ended).runs)

    def run(self, run_id: str) -> Run:
        """Find a run by its id or the beginning of it."""
        return run_index(self.config, self.options).find(run_id)

    def stop_run(self, run_id: str) -> StopOutcome:
        """End a run's processes; blocks until they are gone."""
        return self.run(run_id).stop()


def _sql_name(name: str) -> str:
    """Quote a schema or table where SQL would otherwise fold it to upper case or refuse it."""
    return name if re.fullmatch("[A-Z_][A-Z0-9_]*", name) else f'"{name}"'


def load(
    cache: str,
    source: Any,
    *,
    key: str | None = None,
    split: str | None = None,
    backups: int | None = None,
    replace: bool = False,
    options: ConnectOptions | None = None,
    report: Report = print,
) -> LoadOutcome:
    """Create a cache from data, in the given, the configured or the embedded cluster; see `Session.load`."""
    with open_session(options, report=report) as session:
        outcome = session.load(cache, source, key=key, split=split, backups=backups, replace=replace)
    report(str(outcome))
    return outcome


def local_up(options: EmbeddedOptions, *, report: Report) -> EmbeddedCluster:
    """Start the embedded nodes, or use those that run; they stay until `local_down`. Blocks until ready.

    Raises:
        EmbeddedError: They cannot be started.
    """
    return embedded.ensure_up(options, embedded.Lifetime.UNTIL_DOWN, report=report).cluster


def local_status() -> EmbeddedCluster | None:
    """Look at the embedded nodes; None when there are none. Never blocks."""
    return embedded.status()


def local_down(*, delete_data: bool = False, report: Report) -> ClusterStopped | None:
    """Stop the embedded nodes; None when there were none. `delete_data` removes also what they persisted."""
    outcome = embedded.down(delete_data=delete_data, report=report)
    return outcome if isinstance(outcome, ClusterStopped) else None


def list_runs(*, include_ended: bool = False, config: Path | None = None, via: str | None = None) -> Listed:
    """List the runs of this machine and of the configured cluster, oldest first. Works while Ignite is down."""
    return run_index(_configuration(config, via)).runs(include_ended=include_ended)


def get_run(run_id: str, config: Path | None = None, via: str | None = None) -> Run:
    """Find a run by its id or the beginning of it. Works while Ignite is down.

    Raises:
        RunNotFound: No id begins so, or several do.
    """
    return run_index(_configuration(config, via)).find(run_id)


def stop_run(run_id: str, config: Path | None = None, via: str | None = None) -> StopOutcome:
    """End a run's processes: SIGTERM, 3 s to save, SIGKILL. Blocks until they are gone.

    Raises:
        RunNotFound: No id begins so, or several do.
    """
    return get_run(run_id, config, via).stop()


def diagnose(
    cache: str | None = None,
    *,
    python: str | None = None,
    config: Path | None = None,
    via: str | None = None,
) -> Diagnosis:
    """Look at all that a run needs: the cluster, its hosts, and the ways between them. Starts nothing.

    Works while Ignite is down: then the configured hosts are looked at.

    Args:
        cache: Whose data to look for.
        python: Interpreter of the workers; None is each host's configured one.
        config: As for `open_session`; so is `via`.
        via: SSH host through which all is reached.

    Raises:
        CacheNotFound: There is no such cache.
    """
    found = _configuration(config, via)
    options = found.cluster
    if options is None and found.ssh.via:
        options = ConnectOptions()
    elif options is None and (running := embedded.status()):
        options = running.connect_options
    if options is not None:
        options = _through(found, options)
    return examine(options, found, reach_of(found), cache, python)


def _configuration(path: Path | None, via: str | None) -> Config:
    found = read_config() if path is None else load_config_file(path)
    return found if via is None else replace(found, ssh=replace(found.ssh, via=via))


def run_index(config: Config, cluster: ConnectOptions | None = None, reach: Reach | None = None) -> RunIndex:
    """Give the index of runs, with those of a cluster's registry: of the one given, else of the configured one.

    An embedded cluster is not asked: its runs are all of this machine.
    """
    chosen = cluster or config.cluster or (ConnectOptions() if config.ssh.via else None)
    if chosen is not None and config.ssh.via is not None:
        chosen = _through(config, chosen)
    elif chosen is not None and set(chosen.endpoints) <= set(embedded_endpoints()):
        chosen = None
    return RunIndex(state_dir(), reach or reach_of(config), chosen, config.hosts)


def reach_of(config: Config) -> Reach:
    """Say how hosts are reached, by the configuration."""
    options = config.ssh
    ssh = SshOptions(
        config_files=None if options.config is None else (str(options.config),),
        known_hosts=None if options.known_hosts is None else (str(options.known_hosts),),
        user=options.user,
        via=options.via,
    )
    timings = replace(LinkTimings(), connect_s=options.connect_timeout_s).divided(timings_divisor())
    return Reach(state_dir(), ssh, timings)


def runs_dir() -> Path:
    """Where the directories of this user's runs are."""
    return state_dir() / "runs"
