"""The session, by which a person acts: connect, start a script beside the data, watch it, stop it.

The notebook and the shell are thin views of this module; they take no decisions of their own.
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
_REGISTRY_ANSWER_S = 10.0  # after it a node is taken to have lost its power, and another is asked


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What is worth knowing of a cache at a glance.

    Attributes:
        mode: "partitioned" or "replicated".
        tables: Its SQL tables as a statement names them: "MNIST".MNIST.
        expected_rows: How many rows its load was to write, where that has not come to its end.
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
        ConfigError: The configuration cannot be read.
        ConnectionFailed: No node answers.
        AuthenticationError: The cluster wants a password, or another one.
        HostError: The host to go through cannot be used.
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


# A client in a function that is sent travels as a session does.
copyreg.pickle(Client, lambda client: (_client_at, (client.router.endpoints,)))


class Session(Loading, Predicting, Closing):
    """A connected cluster and the runs of this user. Closing it leaves runs alone."""

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
        """Travel as the cluster's address, without credentials: a worker has its own."""
        return _session_at, (self.options.endpoints,)

    def _repr_html_(self) -> str:
        return facts_html("session", {"cluster": self._where, "runs that go on": str(len(self.runs()))})

    @property
    def _where(self) -> str:
        nodes = ", ".join(map(str, self.options.endpoints))
        return f"the embedded cluster, {nodes}" if self.embedded_cluster else f"the cluster at {nodes}"

    def close(self) -> None:
        """Close the connection. Runs go on: they belong to this process, not to the session."""
        self.client.close()

    @property
    def embedded_cluster(self) -> EmbeddedCluster | None:
        """The embedded cluster, when this session is connected to it."""
        cluster = embedded.status()
        return cluster if cluster and cluster.connect_options == self.options else None

    def caches(self, *, include_own: bool = False) -> list[CacheInfo]:
        """List the caches by name. Asks the cluster about each of them; one that is destroyed meanwhile is left out.

        Args:
            include_own: Also those of this package: its notes, the registry of runs, file systems.
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
            statement: With a `?` for each of `args`.
            args: Bound on the server, never spliced into the text.
            limit: At most so many rows are fetched; None has no limit.
            progress: Told the rows fetched so far, whenever more have come.

        Raises:
            QueryError: The statement or an argument was refused.
            ConnectionFailed: No node could be reached.
            ConnectionLost: The node went away before the last row.
        """
        return SqlClient(self.options).query(statement, args, limit, progress)

    def columns(self, cache: str) -> CacheColumns:
        """Tell what the rows of a cache are made of, by a few hundred of them: types, nulls, what a dataset gives.

        Raises:
            CacheNotFound: There is none of that name; the error lists the near names.
            LoadIncomplete, RowsLost, SchemaError: Its rows are packed, and not all there or not to be read.
        """
        return look_at_columns(self.client, self.query, cache)

    def sample(self, cache: str, num_rows: int = 10) -> CacheSample:
        """Read some rows of a cache, of as many partitions as there are rows, up to 24.

        Raises:
            CacheNotFound: There is none of that name; the error lists the near names.
            LoadIncomplete, RowsLost, SchemaError: Its rows are packed, and not all there or not to be read.
        """
        return look_at_rows(self.client, cache, num_rows)

    def profile(
        self, cache: str, columns: Sequence[str] = (), *, num_rows: int = SAMPLED_ROWS
    ) -> CacheProfile:
        """Make out the numbers of a cache: rows, bytes, skew; of columns nulls, bounds, means, quantiles, classes.

        The cluster makes out what SQL can over all rows, where the cache has a table. The rest is that of a sample, and
        is marked so.

        Args:
            cache: Its name, or that of its SQL table.
            columns: Names of fields, or SQL's; all by default.
            num_rows: The sample; a cache of no more rows is read whole.

        Raises:
            CacheNotFound: There is none of that name; the error lists the near names.
            LoadIncomplete, RowsLost, SchemaError: Its rows are packed, and not all there or not to be read.
            ConfigError: It has no such column.
        """
        return make_profile(self.client, self.query, self.report, cache, columns, num_rows)

    def pyignite(self) -> AbstractContextManager[Any]:
        """Connect Apache's own client, `pyignite.Client`, for what this package does not do; closed with the `with`.

        Such as caches of any configuration, and values of any type. It takes times for this machine's zone.

        Raises:
            ConnectionFailed: No node could be reached.
        """
        return pyignite_client(self.options)

    def default_num_workers(self) -> int:
        """Tell how many workers `ignite-tf start` takes by default: one for each node of the cluster."""
        return len(self.client.nodes())

    def plan_run(self, request: RunRequest) -> Plan:
        """Decide where a run's workers would run, and start nothing. Rows are counted, by the nodes where they can.

        Raises:
            ScriptError: The script is not Python.
            ConfigError: Options contradict each other, or a node's host cannot be told.
            CacheNotFound: There is no such cache.
            LoadIncomplete, RowsLost, NodesMissing: Only a part of its rows is there (see `RunRequest.allow_partial`).
            PlacementError: The workers cannot be spread so, or, as NoRoom, cannot now.
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
            f"{directory}: {parcel.num_files:,} files, {mib(parcel.num_bytes)} packed, go to the hosts"
        )
        if parcel.left_out:
            names = ", ".join(parcel.left_out[:_MOST_NAMES])
            more = len(parcel.left_out) - _MOST_NAMES
            self.report(
                f"left out of it (secrets, and links that lead out): {names}{f' and {more} more' if more > 0 else ''}; "
                "--include NAME ships what a link leads to"
            )

    def _plan_where_most_nodes_are(self, request: RunRequest, reach: Reach) -> RunPlan:
        """Plan again when the node that was asked turns out to be on the smaller side of a cut."""
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
        client = connect_to_most(self.options)
        if len(client.nodes()) <= num_seen:
            client.close()
            return False
        self.client.close()
        self.client = client
        return True

    def start_run(self, request: RunRequest) -> TrainingRun:
        """Start a script or a command on workers, each with partitions of its own.

        Returns when their processes run, when the run is queued (`RunRequest.wait`), or when one of its hosts has taken
        it over (`RunRequest.detach`). Rows are counted, by the nodes where they can. A run that was not detached ends
        with this process. Follow it with `Run.follow`.

        Raises:
            ScriptError: The script is not Python.
            ConfigError: Options contradict each other, requirements cannot be read, a node's host cannot be told, or a
                variable that is to be sent along has no safe form or is too large.
            CacheNotFound: There is no such cache.
            LoadIncomplete, RowsLost, NodesMissing: Only a part of its rows is there (see `RunRequest.allow_partial`).
            PlacementError: Fewer partitions hold rows than workers were asked for, or, as NoRoom, the hosts have too
                few free GPUs or ports.
            EnvironmentFailed: A host cannot be given what the requirements say.
            LaunchError: The workers cannot be started; none is left running. As ParcelError, the job's directory
                cannot be shipped.
            ConnectionFailed: No node takes a detached run into the registry.
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
        """Queue a run for which there is room, when others wait in front of it."""
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
        """Connect a run that this process owns to the cluster, for as long as it lasts."""
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
        """Wait until the output of runs that have ended is in igfs; it is copied every two seconds."""
        for files in self._copies:
            files.wait(timeout_s)

    def prune(
        self, *, keep: int = 20, older_than: timedelta | None = None, dry_run: bool = False
    ) -> list[Pruned]:
        """Remove runs that have ended, with their files in igfs, here and on their hosts.

        What has to stay is told to `report`: files on hosts that do not answer, and all of a lost run of which
        something lives, or may live on a host that cannot be asked.

        Args:
            keep: So many of the newest stay, of this machine's runs and of others' each.
            older_than: Only runs that ended longer ago are removed.
            dry_run: Only tell which would be.

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

        `list_runs` works without a session, and tells what is missing from the picture.
        """
        return list(run_index(self.config, self.options).runs(include_ended=include_ended).runs)

    def run(self, run_id: str) -> TrainingRun:
        """Find a run by its id, or by the beginning of it or of its name.

        Raises:
            RunNotFound: No id begins so, or several do.
        """
        return TrainingRun.of(run_index(self.config, self.options).find(run_id), lambda: self.options)

    def resume_run(self, run_id: str) -> TrainingRun:
        """Start a run again that failed, was stopped or was lost, from its checkpoints: its script, arguments, cache.

        It keeps its id and its files in igfs; what still lives of it is ended first. This process owns it from now on.

        Raises:
            RunNotFound: No id begins so, or several do.
            ConfigError: It has not ended, has succeeded, or may live where it cannot be asked; or its script is lost.
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
        """Go on with a run whose owner has left it, as a kernel does that is restarted: its workers know nothing of it.

        This process owns it from now on. When another one was faster, the run is only given.

        Raises:
            RunNotFound: No id begins so, or several do.
            ConfigError: Nobody has left it, or another machine's process has.
            LaunchError: A host that has workers cannot be asked; nothing has changed.
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
        """Copy the output of a run that this process owns into igfs."""
        files = RunFiles(run, self.options, self.report)
        files.start()
        self._copies.append(files)
        return TrainingRun.of(run, lambda: self.options)

    def stop_run(self, run_id: str) -> StopOutcome:
        """End a run's processes: SIGTERM, 3 s to save, SIGKILL. Blocks until they are gone.

        Raises:
            RunNotFound: No id begins so, or several do.
            HostUnreachable: A host cannot be asked; what runs there ends when its lease is over.
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
    """Create a cache from data in a cluster; arguments and errors are those of `Session.load` and `open_session`."""
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
    """Find a run to watch; one that its owner has left, as a kernel that was restarted, is this process's from now on.

    Args:
        run_id: Its id, or the beginning of it or of its name.
        config: As for `open_session`; so is `via`.
        via: SSH host through which all is reached.
        report: Told when it was taken over.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No id begins so, or several do.
        LaunchError: It cannot be taken over, as a host that has workers cannot be asked.
        ConnectionFailed: It cannot be taken over while Ignite is down.
    """
    run = get_run(run_id, config, via)
    if run.info().left_until is None or run.record().owner_host != socket.gethostname():
        return run
    with open_session(report=report, config=config, via=via) as session:
        run = session.take_over_run(run.id)
    report(f"run {run.id} was left by its owner; it is this process's now")
    return run
