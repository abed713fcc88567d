"""The data of a panel: runs with their trainings, the cluster's nodes, its caches and their partition owners.

A feed keeps its connections to the cluster, and reads only the new records of each training, so that many runs cost
little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.client.regions import RegionUse, region_use
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.table_names import list_tables
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import IgfsError, IgniteTfError
from ignite_tf_magic.igfs.layout import FileNode
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.runs.record import RunInfo
from ignite_tf_magic.session.cluster_names import CONNECT_S, num_rows, without_own
from ignite_tf_magic.session.known_runs import cluster_that_runs
from ignite_tf_magic.session.resolve import configuration, run_index
from ignite_tf_magic.settings.options import ConnectOptions
from ignite_tf_magic.training.records import FILE_NAME, RecordReader, TrainingRecord, without_repeats

_PART_BYTES = 1 << 20
_CLUSTER_S = 10.0  # nodes and caches seldom change
_RETRY_S = 10.0
_KEPT_RECORDS = 80


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of the cluster.

    Attributes:
        id: Its ID in the cluster.
        name: "host:port", the first address that it lists.
        used_bytes: Used memory for data; None if the node does not report it.
        max_bytes: Maximum memory for data; None if the node does not report it.
    """

    id: str
    name: str
    host: str
    used_bytes: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CacheSeen:
    """A cache of the cluster.

    Attributes:
        rows: Number of rows.
        backups: Copies in addition to the first; None if every node has all rows.
        tables: Its SQL tables, as a statement names them.
        primaries: Number of partitions that each node is the primary owner of, by node ID.
    """

    name: str
    rows: int
    backups: int | None
    tables: tuple[str, ...]
    primaries: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PanelSeen:
    """The state of runs and cluster at one moment.

    Attributes:
        runs: All known runs, oldest first.
        records: Training records of each run, by its ID; runs without records are omitted.
        cluster: Nodes by which the cluster is reached; empty if there is none.
        trouble: Why the cluster does not answer; empty if it does, or if there is none.
        warnings: Reasons why runs may be missing.
    """

    runs: tuple[RunInfo, ...] = ()
    records: Mapping[str, Sequence[TrainingRecord]] = field(default_factory=dict)
    cluster: tuple[str, ...] = ()
    trouble: str = ""
    nodes: tuple[NodeSeen, ...] = ()
    caches: tuple[CacheSeen, ...] = ()
    warnings: tuple[str, ...] = ()


class _Told:
    """The training records of a run so far. Each reading continues where the last one ended."""

    def __init__(self) -> None:
        self.records: list[TrainingRecord] = []
        self.is_whole = False
        self._reader = RecordReader()
        self._num_bytes = 0

    def read_on(self, volume: Volume, run_id: str) -> None:
        path = ("runs", run_id, FILE_NAME)
        node = volume.stat(path)
        if not isinstance(node, FileNode) or node.size <= self._num_bytes:
            return
        with volume.open_read(path) as file:
            space = memoryview(bytearray(_PART_BYTES))
            while count := file.read_into(self._num_bytes, space):
                self._num_bytes += count
                self.records += self._reader.feed(bytes(space[:count]))
        self.records = without_repeats(self.records)

    def thin_out(self) -> None:
        """Keep only as many records of an ended training as a small chart shows, and the last one."""
        step = max(len(self.records) // _KEPT_RECORDS, 1)
        self.records = [*self.records[:-1:step], *self.records[-1:]]


class PanelFeed(Closing):
    """Polls runs and the cluster. Thread-safe; one thread polls at a time.

    Args:
        config: As for `open_session`; so is `via`.
        via: SSH host through which everything is reached.
        most_ended: Number of newest ended runs whose training records are read.
    """

    def __init__(self, config: Path | None = None, via: str | None = None, *, most_ended: int = 50) -> None:
        self._config, self._via = config, via
        self._most_ended = most_ended
        self._lock = threading.Lock()
        self._told: dict[str, _Told] = {}
        self._client: Client | None = None
        self._volume: Volume | None = None
        self._options: ConnectOptions | None = None
        self._failed_at = self._cluster_at = float("-inf")
        self._trouble = ""
        self._nodes: tuple[NodeSeen, ...] = ()
        self._caches: tuple[CacheSeen, ...] = ()
        self._seen = PanelSeen()
        self._seen_at = float("-inf")

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._hang_up()

    def look(self, max_age_s: float = 0.0) -> PanelSeen:
        """Return the current state, or the previous result if it is not older than `max_age_s`.

        Raises:
            ConfigError: The configuration cannot be read.
        """
        with self._lock:
            if time.monotonic() - self._seen_at >= max_age_s:
                self._seen = self._look()
                self._seen_at = time.monotonic()
            return self._seen

    def _look(self) -> PanelSeen:
        found = configuration(self._config, self._via)
        listed = run_index(found).runs(include_ended=True)
        self._connect(cluster_that_runs(found))
        if self._client is not None:
            try:
                self._look_at_cluster(self._client)
                self._read_trainings(listed.runs)
            except (IgniteTfError, OSError) as error:
                self._fail(error)
        return PanelSeen(
            runs=listed.runs,
            records={run_id: tuple(told.records) for run_id, told in self._told.items() if told.records},
            cluster=tuple(map(str, self._options.endpoints)) if self._options else (),
            trouble=self._trouble,
            nodes=self._nodes,
            caches=self._caches,
            warnings=listed.warnings,
        )

    def _connect(self, options: ConnectOptions | None) -> None:
        if options != self._options:
            self._hang_up()
            self._options, self._trouble, self._nodes, self._caches = options, "", (), ()
            self._failed_at = self._cluster_at = float("-inf")
        if options is None or self._client is not None or time.monotonic() - self._failed_at < _RETRY_S:
            return
        soon = replace(options, timeout_s=CONNECT_S)
        try:
            self._client = connect(soon)
            self._volume = Volume(lambda: soon)
            self._trouble = ""
        except (IgniteTfError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._trouble, self._failed_at = str(error), time.monotonic()
        self._hang_up()

    def _hang_up(self) -> None:
        with suppress(IgniteTfError, OSError):
            if self._volume is not None:
                self._volume.close()
            if self._client is not None:
                self._client.close()
        self._client = self._volume = None

    def _look_at_cluster(self, client: Client) -> None:
        if time.monotonic() - self._cluster_at < _CLUSTER_S:
            return
        uses = {use.node.node_id: use for use in region_use(client)}
        self._nodes = tuple(_node_seen(node, uses.get(node.node_id)) for node in client.nodes())
        tables: dict[str, list[str]] = {}
        for table in list_tables(client.router):
            tables.setdefault(table.cache, []).append(str(table))
        self._caches = tuple(_caches_seen(client, tables))
        self._cluster_at = time.monotonic()

    def _read_trainings(self, runs: Sequence[RunInfo]) -> None:
        """Read new records of live runs and of the newest ended ones; drop those of other runs."""
        ended = [run.id for run in runs if run.state.has_ended][-self._most_ended :]
        wanted = {run.id: run for run in runs if not run.state.has_ended or run.id in ended}
        self._told = {run_id: self._told.get(run_id) or _Told() for run_id in wanted}
        for run_id, told in self._told.items():
            has_ended = wanted[run_id].state.has_ended
            if self._volume is None or (told.is_whole and has_ended):
                continue
            with suppress(
                IgfsError
            ):  # no records yet, or another user's entry of that name is not a file of records
                told.read_on(self._volume, run_id)
            told.is_whole = has_ended
            if has_ended:
                told.thin_out()


def _node_seen(node: Node, use: RegionUse | None) -> NodeSeen:
    own = node.listed or node.endpoints
    name, host = (str(own[0]), own[0].host) if own else (str(node.node_id), "")
    memory = (None, None) if use is None else (use.used_bytes, use.max_bytes)
    return NodeSeen(str(node.node_id), name, host, *memory)


def _caches_seen(client: Client, tables: Mapping[str, Sequence[str]]) -> Iterable[CacheSeen]:
    for name in sorted(without_own(client.cache_names())):
        with suppress(IgniteTfError):  # the cache may have been destroyed meanwhile
            cache = client.cache(name)
            owners = cache.partition_map()
            primaries = {str(node): len(parts) for node, parts in owners.owners.items()}
            config = cache.config()
            backups = config.backups if owners.partitioned else None
            yield CacheSeen(name, num_rows(cache, config), backups, tuple(tables.get(name, ())), primaries)
