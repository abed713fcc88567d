"""What a panel shows: runs with their trainings, the cluster's nodes, caches and who owns which partitions.

A feed keeps its connections to the cluster's caches and files, and reads of each training only what is new, so that
many runs cost little.
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
_CLUSTER_S = 10.0  # nodes and caches change seldom
_RETRY_S = 10.0
_KEPT_RECORDS = 80


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of the cluster.

    Attributes:
        id: Its id in the cluster.
        name: "host:port", as it lists itself first.
        used_bytes: Of its memory for data; None where it does not tell.
        max_bytes: Of that memory.
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
        rows: How many it has.
        backups: Copies beside the first; None where all nodes have all rows.
        tables: Its SQL tables, as a statement names them.
        primaries: How many of its partitions each node is the primary owner of, by the node's id.
    """

    name: str
    rows: int
    backups: int | None
    tables: tuple[str, ...]
    primaries: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PanelSeen:
    """What there is, at one moment.

    Attributes:
        runs: All runs that are known, oldest first.
        records: What the training of each run has told, by its id; none of runs that told nothing.
        cluster: Nodes by which the cluster is reached; empty where there is none.
        trouble: Why the cluster does not answer; empty where it does, or there is none.
        warnings: What could not be asked about runs.
    """

    runs: tuple[RunInfo, ...] = ()
    records: Mapping[str, Sequence[TrainingRecord]] = field(default_factory=dict)
    cluster: tuple[str, ...] = ()
    trouble: str = ""
    nodes: tuple[NodeSeen, ...] = ()
    caches: tuple[CacheSeen, ...] = ()
    warnings: tuple[str, ...] = ()


class _Told:
    """What a run's training has told so far, read on from where the last reading ended."""

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
        """Keep what a small line shows of a training that has ended, and the last."""
        step = max(len(self.records) // _KEPT_RECORDS, 1)
        self.records = [*self.records[:-1:step], *self.records[-1:]]


class PanelFeed(Closing):
    """Looks at runs and the cluster again and again. Any thread may ask; one looks at a time.

    Args:
        config: As for `open_session`; so is `via`.
        via: SSH host through which all is reached.
        most_ended: Of so many of the newest runs that have ended, their trainings are read.
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
        """Hang up."""
        with self._lock:
            self._hang_up()

    def look(self, max_age_s: float = 0.0) -> PanelSeen:
        """Look at all; what was seen so lately is given again.

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
        """Read on what live runs and the newest of those that have ended tell; forget the others."""
        ended = [run.id for run in runs if run.state.has_ended][-self._most_ended :]
        wanted = {run.id: run for run in runs if not run.state.has_ended or run.id in ended}
        self._told = {run_id: self._told.get(run_id) or _Told() for run_id in wanted}
        for run_id, told in self._told.items():
            has_ended = wanted[run_id].state.has_ended
            if self._volume is None or (told.is_whole and has_ended):
                continue
            with suppress(IgfsError):  # nothing was told, or what others have put there is no such file
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
        with suppress(IgniteTfError):  # it may have gone meanwhile
            cache = client.cache(name)
            owners = cache.partition_map()
            primaries = {str(node): len(parts) for node, parts in owners.owners.items()}
            config = cache.config()
            backups = config.backups if owners.partitioned else None
            yield CacheSeen(name, num_rows(cache, config), backups, tuple(tables.get(name, ())), primaries)
