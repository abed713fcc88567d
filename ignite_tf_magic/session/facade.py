"""The session: the API to connect to a cluster, start a script beside the data, watch the run and stop it.

The notebook and the shell are thin views of this module and make no decisions of their own.
"""

from __future__ import annotations

import copyreg
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ignite_tf_magic import embedded
from ignite_tf_magic.client.cache_facts import LoadState, load_mark, read_facts
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.control import pyignite_client
from ignite_tf_magic.client.sql import QueryProgress, SqlClient
from ignite_tf_magic.client.sql_result import QueryResult
from ignite_tf_magic.client.table_names import list_tables
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.data.load_options import LoadOutcome
from ignite_tf_magic.data.text_files import TextFormat
from ignite_tf_magic.embedded import EmbeddedCluster
from ignite_tf_magic.errors import CacheNotFound, ConfigError, IgniteTfError, NoRoom
from ignite_tf_magic.igfs.addresses import given_cluster
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.launch.entries import mib
from ignite_tf_magic.launch.parcels import Parcel
from ignite_tf_magic.profiling.columns import CacheColumns, look_at_columns
from ignite_tf_magic.profiling.profile import SAMPLED_ROWS, CacheProfile, make_profile
from ignite_tf_magic.profiling.sample import CacheSample, look_at_rows
from ignite_tf_magic.runs.decisions import Reports
from ignite_tf_magic.runs.handles.run import Run, StopOutcome
from ignite_tf_magic.runs.handles.run_files import RunFiles
from ignite_tf_magic.runs.hosts.topology import TopologyWatch, connect_to_majority, connect_to_most
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import RunInfo, RunRecord
from ignite_tf_magic.runs.registry.publisher import Publisher
from ignite_tf_magic.runs.registry.queue import check_turn
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.supervision import manager
from ignite_tf_magic.runs.supervision.manager import RunHooks, RunPlan
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.serialization.facts_html import facts_html
from ignite_tf_magic.serialization.terminal_text import echo, visible
from ignite_tf_magic.serialization.values import encode
from ignite_tf_magic.session.cluster_names import num_rows, without_own
from ignite_tf_magic.session.known_runs import get_run
from ignite_tf_magic.session.loads import Loading
from ignite_tf_magic.session.local_nodes import start_embedded
from ignite_tf_magic.session.predictions import Predicting
from ignite_tf_magic.session.pruning import Pruned, Pruner
from ignite_tf_magic.session.resolve import (
    configuration,
    named_cluster,
    reach_of,
    run_index,
    runs_dir,
    through,
)
from ignite_tf_magic.session.resuming import (
    directory_to_resume,
    forget_stop,
    plan_to_resume,
    plan_to_take_over,
)
from ignite_tf_magic.session.run_plans import RunRequest, plan_again, plan_run, with_environments
from ignite_tf_magic.session.run_values import push
from ignite_tf_magic.session.submission import submit
from ignite_tf_magic.session.training_run import TrainingRun
from ignite_tf_magic.settings.options import Config, ConnectOptions, Endpoint, state_dir, timeouts_divisor

Report = Callable[[str], None]
_MOST_NAMES = 8
_REGISTRY_ANSWER_S = (
    10.0  # a node that takes longer is assumed to have lost its power, and another one is asked
)


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A summary of one cache.

    Attributes:
        mode: "partitioned" or "replicated".
        tables: Its SQL tables as a statement names them: "MNIST".MNIST.
        expected_rows: Number of rows that its load was to write, if that load is unfinished; otherwise None.
    """

    name: str
    rows: int
    mode: str
    backups: int
    tables: tuple[str, ...]
    expected_rows: int | None = None


def open_session(
    options: ConnectOptions | None = None,
    *,
    report: Report = echo,
    config: Path | None = None,
    via: str | None = None,
) -> Session:
    """Connect to the given cluster, else the configured one, else the embedded one.

    The embedded cluster is started if it is not running, and then stops when idle. Close the session, or use
    it as a context manager.

    Args:
        options: How to reach a cluster; None uses the configured or the embedded one.
        config: A file like ignite-tf.toml, or Ignite's Spring XML; None searches for ignite-tf.toml.
        via: SSH host through which the cluster and its hosts are reached, if there is no direct way; the
            configured host by default. If no cluster is configured, the one with a node on that host is used.
        report: Called with one line at a time about operations that take long.

    Raises:
        ConfigError: The configuration cannot be read.
        ConnectionFailed: No node answers.
        AuthenticationError: The cluster requires a password, or a different one.
        HostError: The SSH host cannot be used.
        EmbeddedError: No cluster is configured and the embedded one cannot be started.
    """
    configured = configuration(config, via)
    for note in configured.notes:
        report(note)
    options = through(configured, options or named_cluster(configured) or start_embedded(report))
    return Session(options, connect_to_most(options), report, configured)


def _session_at(endpoints: tuple[Endpoint, ...]) -> Session:
    return open_session(given_cluster() or ConnectOptions(endpoints))


def _client_at(endpoints: tuple[Endpoint, ...]) -> Client:
    return connect_to_most(given_cluster() or ConnectOptions(endpoints))


# A client that a pickled function refers to is pickled as its endpoints, like a session.
copyreg.pickle(Client, lambda client: (_client_at, (client.router.endpoints,)))


class Session(Loading, Predicting, Closing):
    """A connection to a cluster, with commands on its caches and on this user's runs. Closing it does not end runs."""

    def __init__(
        self, options: ConnectOptions, client: Client, report: Report, config: Config | None = None
    ) -> None:
        self.options = options
        self.client = client
        self.report: Report = lambda line: report(visible(line))
        self.config = config or Config()
        self._copies: list[RunFiles] = []

    def __repr__(self) -> str:
        return f"<session with {self._where}>"

    def __reduce__(self) -> Any:
        """Pickle the cluster's address without credentials; a worker has its own."""
        return _session_at, (self.options.endpoints,)

    def _repr_html_(self) -> str:
        return facts_html("session", {"cluster": self._where, "runs that go on": str(len(self.runs()))})

    @property
    def _where(self) -> str:
        nodes = ", ".join(map(str, self.options.endpoints))
        return f"the embedded cluster, {nodes}" if self.embedded_cluster else f"the cluster at {nodes}"

    def close(self) -> None:
        """Close the connection. Runs continue: they belong to this process, not to the session."""
        self.client.close()

    @property
    def embedded_cluster(self) -> EmbeddedCluster | None:
        """The embedded cluster if this session is connected to it, else None."""
        cluster = embedded.status()
        return cluster if cluster and cluster.connect_options == self.options else None

    def caches(self, *, include_own: bool = False) -> list[CacheInfo]:
        """List the caches by name.

        Queries the cluster about each cache, and omits caches that are destroyed meanwhile.

        Args:
            include_own: Also list the caches of this package: its notes, the registry of runs, file systems.
        """
        tables: dict[str, list[str]] = {}
        for table in list_tables(self.client.router):
            tables.setdefault(table.cache, []).append(table.in_full)
        infos = []
        names = self.client.cache_names()
        for name in names if include_own else without_own(names):
            with suppress(CacheNotFound):
                infos.append(self._cache_info(name, tuple(tables.get(name, ()))))
        return infos

    def _cache_info(self, name: str, tables: tuple[str, ...]) -> CacheInfo:
        cache = self.client.cache(name)
        config = cache.config()
        mode = config.mode.name.lower()
        mark = load_mark(read_facts(self.client, name))
        expected = mark.expected_rows if mark and mark.state is not LoadState.COMPLETE else None
        return CacheInfo(name, num_rows(cache, config), mode, config.backups, tables, expected)

    def query(
        self,
        statement: str,
        args: Sequence[Any] = (),
        limit: int | None = None,
        progress: QueryProgress | None = None,
    ) -> QueryResult:
        """Run one SQL statement.

        Args:
            statement: SQL text with a `?` for each of `args`.
            args: Values that the server binds; they are never spliced into the text.
            limit: Maximum number of rows to fetch; None fetches all.
            progress: Called with the number of rows fetched so far, whenever more have arrived.

        Raises:
            QueryError: The statement or an argument was refused.
            ConnectionFailed: No node could be reached.
            ConnectionLost: The connection to the node broke before the last row.
        """
        return SqlClient(self.options).query(statement, args, limit, progress)

    def columns(self, cache: str) -> CacheColumns:
        """Return the columns of a cache, judged by a few hundred rows: types, nulls, and what a dataset yields.

        Raises:
            CacheNotFound: There is no cache of that name; the error lists similar names.
            LoadIncomplete, RowsLost, SchemaError: The cache is packed, and some of its rows are missing or unreadable.
        """
        return look_at_columns(self.client, self.query, cache)

    def sample(self, cache: str, num_rows: int = 10) -> CacheSample:
        """Read some rows of a cache, spread over as many partitions as there are rows, up to 24.

        Raises:
            CacheNotFound: There is no cache of that name; the error lists similar names.
            LoadIncomplete, RowsLost, SchemaError: The cache is packed, and some of its rows are missing or unreadable.
        """
        return look_at_rows(self.client, cache, num_rows)

    def profile(
        self, cache: str, columns: Sequence[str] = (), *, num_rows: int = SAMPLED_ROWS
    ) -> CacheProfile:
        """Compute statistics of a cache: rows, bytes, skew; per column nulls, bounds, means, quantiles, classes.

        If the cache has a SQL table, the cluster computes what SQL can over all rows. The other statistics are
        computed from a sample, and are marked as such.

        Args:
            cache: Its name, or that of its SQL table.
            columns: Names of fields or of SQL columns; all by default.
            num_rows: Sample size in rows; a cache with no more rows than this is read completely.

        Raises:
            CacheNotFound: There is no cache of that name; the error lists similar names.
            LoadIncomplete, RowsLost: The cache is packed, and some of its rows are missing.
            SchemaError: A name matches no column, or several. Or the cache is packed and cannot be read.
            ConfigError: The cache is packed, and pyarrow is not installed.
        """
        return make_profile(self.client, self.query, self.report, cache, columns, num_rows)

    def pyignite(self) -> AbstractContextManager[Any]:
        """Connect Apache's own client, `pyignite.Client`, as a context manager that closes it.

        Use it for what this package does not offer, such as caches with any configuration and values of any type.
        It interprets times in this machine's time zone.

        Raises:
            ConnectionFailed: No node could be reached.
        """
        return pyignite_client(self.options)

    def default_num_workers(self) -> int:
        """Return the default number of workers of `ignite-tf start`: one for each node of the cluster."""
        return len(self.client.nodes())

    def plan_run(self, request: RunRequest) -> Plan:
        """Decide where a run's workers would run, and start nothing.

        Counts the rows of the cache, on the nodes if they support it.

        Raises:
            ScriptError: The script is not valid Python.
            ConfigError: Options contradict each other, or the host of a node cannot be determined.
            CacheNotFound: There is no such cache.
            LoadIncomplete, RowsLost, NodesMissing: Some of the cache's rows are missing; see
                `RunRequest.allow_partial`.
            PlacementError: The workers cannot be placed as requested. As NoRoom, they cannot be placed at present.
            ParcelError: The job's directory cannot be shipped.
        """
        return self._plan_run(replace(request, wait=False), reach_of(self.config)).plan

    def _plan_run(self, request: RunRequest, reach: Reach) -> RunPlan:
        run = self._plan_where_most_nodes_are(request, reach)
        if run.spec.cache != request.cache:
            self.report(f"table {request.cache} is cache {run.spec.cache}")
        for warning in run.plan.warnings:
            self.report(f"warning: {warning}")
        for host, reason in run.plan.unusable.items():
            self.report(f"{host} gets no worker, and its partitions are read over the network: {reason}")
        for parcel in run.parcels:
            if parcel.digest == run.spec.job_parcel:
                self._report_job(str(request.job_dir), parcel)
        if run.plan.is_far:
            self.report("no host with data can be used: all workers run on this machine")
        return run

    def _report_job(self, directory: str, parcel: Parcel) -> None:
        self.report(
            f"{directory}: {parcel.num_files:,} files, {mib(parcel.num_bytes)} packed, are sent to the hosts"
        )
        if parcel.left_out:
            names = ", ".join(parcel.left_out[:_MOST_NAMES])
            more = len(parcel.left_out) - _MOST_NAMES
            self.report(
                f"not sent (secrets, and links to files outside): {names}{f' and {more} more' if more > 0 else ''}; "
                "--include NAME sends the target of a link"
            )

    def _plan_where_most_nodes_are(self, request: RunRequest, reach: Reach) -> RunPlan:
        """Plan a run; plan again if the connected node turns out to be on the smaller side of a split cluster."""
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
        """Reconnect to the larger part of the cluster if the connected node was cut off from it meanwhile."""
        num_seen = len(self.client.nodes())
        if 2 * num_seen > len(self.options.endpoints):
            return False
        client = connect_to_most(self.options)
        if len(client.nodes()) <= num_seen:
            client.close()
            return False
        self.client.close()
        self.client = client
        return True

    def start_run(self, request: RunRequest) -> TrainingRun:
        """Start a script or a command on workers, each with partitions of its own.

        Returns when the workers' processes run, when the run is queued (`RunRequest.wait`), or when one of its hosts
        has taken it over (`RunRequest.detach`). Counts the rows of the cache, on the nodes if they support it. A run
        that is not detached ends with this process. Follow it with `Run.follow`.

        Raises:
            ScriptError: The script is not valid Python.
            ConfigError: Options contradict each other, requirements cannot be read, the host of a node cannot be
                determined, or a pushed variable has no safe serialized form or is too large.
            CacheNotFound: There is no such cache.
            LoadIncomplete, RowsLost, NodesMissing: Some of the cache's rows are missing; see
                `RunRequest.allow_partial`.
            PlacementError: Fewer partitions hold rows than workers were requested. As NoRoom, the hosts have too few
                free GPUs or ports.
            EnvironmentFailed: The environment for the requirements cannot be built on a host.
            LaunchError: The workers cannot be started; none is left running. As ParcelError, the job's directory
                cannot be shipped.
            ConnectionFailed: No node accepts a detached run into the registry.
        """
        inputs = encode(request.push) if request.push else None
        with reach_of(self.config).keeping() as reach:
            plan = with_environments(self._plan_run(request, reach), request, reach, self.report)
            if request.wait and plan.plan.insufficient_capacity is None:
                plan = self._behind_others(plan)
            if plan.plan.insufficient_capacity is not None:
                self.report(f"the run is queued: {plan.plan.insufficient_capacity}")
            if request.detach:
                options = replace(self.options, timeout_s=min(self.options.timeout_s, _REGISTRY_ANSWER_S))
                connect_again = partial(connect_to_majority, options, plan.plan.topology)
                registry = partial(Registry, connect_again)
                prepare = partial(self._push, inputs)
                run = submit(plan, state_dir(), reach, registry, timeouts_divisor(), prepare)
                return TrainingRun.of(run, lambda: self.options)
            run = manager.start_run(plan, runs_dir(), reach, partial(self._hooks, plan, reach, inputs))
        return self._owned(run)

    def _behind_others(self, plan: RunPlan) -> RunPlan:
        """Queue a run that has room if other queued runs come before it."""
        queued = manager.first_record(_queued(plan, "its turn"), "", detached=False)
        try:
            with Registry(self.client) as registry:
                check_turn(queued, registry.runs())
        except NoRoom as error:
            return _queued(plan, str(error))
        return plan

    def _push(self, inputs: bytes | None, run_id: str) -> None:
        if inputs is not None:
            push(self.options, run_id, inputs)

    def _hooks(self, plan: RunPlan, reach: Reach, inputs: bytes | None, run_id: str) -> RunHooks:
        """Return the hooks that connect a run of this process to the cluster while the run lasts."""
        self._push(inputs, run_id)
        config = self.config
        connect_again = partial(connect_to_majority, self.options, plan.plan.topology)
        publisher = Publisher(Registry(connect_again, timeouts=plan.timeouts), run_id, plan.timeouts)
        topology = TopologyWatch(connect_again, plan.spec.cache, plan.plan.topology)

        def plan_anew(record: RunRecord, reports: Reports) -> Plan:
            with connect_again() as client:
                with Registry(client) as registry:
                    check_turn(record, registry.runs())
                return plan_again(client, self.options, config, record, reports, reach)

        def close() -> None:
            topology.close()
            publisher.close()

        return RunHooks(
            plan_anew, lambda: topology.snapshot, publisher.publish, lambda: publisher.stop_asked, close
        )

    def wait_for_copies(self, timeout_s: float) -> None:
        """Wait until the output of this session's ended runs is in igfs. It is copied every two seconds."""
        for files in self._copies:
            files.wait(timeout_s)

    def prune(
        self, *, keep: int = 20, older_than: timedelta | None = None, dry_run: bool = False
    ) -> list[Pruned]:
        """Remove ended runs with their files: in igfs, on this machine and on their hosts.

        Calls `report` with what is kept: files on hosts that do not answer, and everything of a lost run whose
        processes still live, or may live on a host that does not answer.

        Args:
            keep: Number of newest runs to keep, counted separately for this machine's runs and for others.
            older_than: Remove only runs that ended at least this long ago.
            dry_run: Remove nothing; only return the runs that would be removed.

        Returns:
            The runs that were removed, oldest first.
        """
        with (
            reach_of(self.config).keeping() as reach,
            Volume(lambda: self.options) as volume,
            Registry(self.client) as registry,
        ):
            index = run_index(self.config, self.options, reach)
            pruner = Pruner(volume, registry, index, reach, self.report)
            return pruner.prune(keep=keep, older_than=older_than, dry_run=dry_run)

    def runs(self, *, include_ended: bool = False) -> list[RunInfo]:
        """List the runs of this machine and of the cluster, oldest first.

        `list_runs` works without a session, and also returns warnings if runs may be missing.
        """
        return list(run_index(self.config, self.options).runs(include_ended=include_ended).runs)

    def run(self, run_id: str) -> TrainingRun:
        """Return the run with this ID, or whose ID or name starts with it.

        Raises:
            RunNotFound: No run matches, or several do.
        """
        return TrainingRun.of(run_index(self.config, self.options).find(run_id), lambda: self.options)

    def resume_run(self, run_id: str) -> TrainingRun:
        """Restart a failed, stopped or lost run from its checkpoints, with the same script, arguments and cache.

        The run keeps its ID and its files in igfs. Its remaining processes are ended first. This process becomes the
        owner.

        Raises:
            RunNotFound: No run matches, or several do.
            ConfigError: The run has not ended, has succeeded, may still live on a host that does not answer, or its
                script is lost.
        """
        with reach_of(self.config).keeping() as reach, Registry(self.client) as registry:
            index = run_index(self.config, self.options, reach)
            found = index.find(run_id)
            is_here = index.is_of_this_home(found)
            plan = plan_to_resume(found, registry, self.options, is_of_this_home=is_here)
            record = found.record()
            directory = directory_to_resume(found, runs_dir())
            forget_stop(found, registry)
            hooks = partial(self._hooks, plan, reach, None)
            run = manager.resume_run(plan, record, directory, reach, hooks)
        return self._owned(run)

    def take_over_run(self, run_id: str) -> TrainingRun:
        """Continue a run whose owner exited, such as a restarted kernel. The workers are not interrupted.

        This process becomes the owner. If another process took the run over first, it is returned without being owned.

        Raises:
            RunNotFound: No run matches, or several do.
            ConfigError: The run has an owner, has ended, or was owned by a process of another machine.
            LaunchError: A host that has workers does not answer; nothing has changed.
        """
        with reach_of(self.config).keeping() as reach:
            index = run_index(self.config, self.options, reach)
            found = index.find(run_id)
            record, is_left = found.record(), found.info().left_until is not None
            if not is_left:
                raise ConfigError(
                    f"run {found.id} has an owner, or has ended; watch it with attach {found.id}"
                )
            if not index.is_of_this_home(found):
                raise ConfigError(
                    f"run {found.id} can only be taken over on {record.owner_host}, by the user who started it there"
                )
            plan = plan_to_take_over(record, self.options)
            hooks = partial(self._hooks, plan, reach, None)
            try:
                run = manager.take_over_run(plan, record, found.directory, reach, hooks)
            except BlockingIOError:
                return TrainingRun.of(found, lambda: self.options)
        return self._owned(run)

    def _owned(self, run: Run) -> TrainingRun:
        """Start copying the output of a run that this process owns into igfs."""
        files = RunFiles(run, self.options, self.report)
        files.start()
        self._copies.append(files)
        return TrainingRun.of(run, lambda: self.options)

    def stop_run(self, run_id: str) -> StopOutcome:
        """End a run's processes: send SIGTERM, wait 3 s for saving, send SIGKILL. Blocks until they are gone.

        Raises:
            RunNotFound: No run matches, or several do.
            HostUnreachable: A host does not answer; the processes on it end when their lease expires.
        """
        return self.run(run_id).stop()


def _queued(plan: RunPlan, reason: str) -> RunPlan:
    return replace(plan, plan=replace(plan.plan, seats=(), insufficient_capacity=reason))


def load(
    cache: str,
    source: Any,
    *,
    key: str | Sequence[str] = (),
    split: str | None = None,
    backups: int | None = None,
    replace: bool = False,
    append: bool = False,
    upsert: bool = False,
    resume: bool = False,
    packed: bool = False,
    rejects: Path | None = None,
    text: TextFormat | None = None,
    keep_nan: bool = False,
    drop: Sequence[str] = (),
    options: ConnectOptions | None = None,
    report: Report = echo,
) -> LoadOutcome:
    """Create a cache from data; arguments and errors are those of `Session.load` and `open_session`."""
    with open_session(options, report=report) as session:
        outcome = session.load(
            cache,
            source,
            key=key,
            split=split,
            backups=backups,
            replace=replace,
            append=append,
            upsert=upsert,
            resume=resume,
            packed=packed,
            rejects=rejects,
            text=text,
            keep_nan=keep_nan,
            drop=drop,
        )
    report(str(outcome))
    return outcome


def attach_run(
    run_id: str, config: Path | None = None, via: str | None = None, *, report: Report
) -> TrainingRun:
    """Return a run to watch. If its owner exited, such as a restarted kernel, this process becomes the owner.

    Args:
        run_id: The run's ID, or the beginning of its ID or of its name.
        config: As for `open_session`; so is `via`.
        via: SSH host through which everything is reached.
        report: Called with a line when the run was taken over.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No run matches, or several do.
        LaunchError: The run cannot be taken over because a host that has workers does not answer.
        ConnectionFailed: The run cannot be taken over while Ignite is down.
    """
    run = get_run(run_id, config, via)
    if run.info().left_until is None or run.record().owner_host != socket.gethostname():
        return run
    with open_session(report=report, config=config, via=via) as session:
        run = session.take_over_run(run.id)
    report(f"the owner of run {run.id} has ended; this process owns it now")
    return run
