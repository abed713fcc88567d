"""Reads partitions from their owners. After a node is lost it continues at the new owners or raises PartitionsLost."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Protocol

from ignite_tf_magic.client.channel import Channel
from ignite_tf_magic.client.owner_query import OwnerQuery, Pieces, RowQuery
from ignite_tf_magic.client.owner_scan import OwnerScan, PartitionProgress
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.router import Node, Router, wait_for
from ignite_tf_magic.client.scanned_pages import ScannedPage, ScannedSeries
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionFailed,
    ConnectionLost,
    IgniteTfError,
    PartitionsLost,
    ServerError,
    format_ranges,
)
from ignite_tf_magic.protocol.affinity import PartitionMap
from ignite_tf_magic.protocol.ops import Status

# The only partition of a replicated cache, which has no partition map: each node holds all rows, one scan reads them.
WHOLE_CACHE = -1
MAX_ATTEMPTS = 6
RECOVERY_TIMEOUT_S = 40.0
# Parts of messages of the servers' own exceptions, which all have the same status.
_TRANSIENT = (
    *("ClusterTopology", "topology", "reserve", "not owner", "node left", "left the grid", "exchange"),
    "fetch data from node",
)
_LOST = ("partition data has been lost", "CacheInvalidStateException", "lost partitions")


@dataclass(frozen=True, slots=True)
class Baseline:
    """Owners and nodes at the time a reader was created. Later losses are detected by comparison with it.

    Attributes:
        owners: Partition -> node of its primary copy. The key is WHOLE_CACHE for a replicated cache, and for a cache
            whose owners the cluster does not report.
        nodes: The server nodes at that time.
        backups: Copies of each partition besides the primary.
        size: Number of rows at that time.
    """

    cache: str
    owners: Mapping[int, uuid.UUID]
    nodes: frozenset[uuid.UUID]
    backups: int
    size: int

    @property
    def rows_of_a_node(self) -> float:
        """The average number of rows on a node, including backup copies."""
        return self.size * (1 + self.backups) / len(self.nodes)

    def at(self, owners: Mapping[int, uuid.UUID], nodes: Iterable[uuid.UUID]) -> Baseline:
        """Return this baseline with the owners and nodes of a later time, after earlier losses were recovered."""
        return replace(self, owners=owners, nodes=frozenset(nodes))

    def lost(self, alive: Iterable[uuid.UUID], partitions: Iterable[int]) -> list[int]:
        """Return those partitions all copies of which may be lost, sorted.

        With b backups any b nodes may leave. When more have left, each partition whose primary was
        among them counts as lost, because the protocol does not say which node holds which backup.
        """
        departed = self.nodes - frozenset(alive)
        if len(departed) <= self.backups:
            return []
        return sorted(p for p in partitions if p == WHOLE_CACHE or self.owners.get(p) in departed)


class CacheLike(Protocol):
    """The methods of a cache that a scan needs."""

    @property
    def name(self) -> str:
        """The cache's name."""

    @property
    def cache_id(self) -> int:
        """The number that identifies the cache in requests."""

    def partition_map(self) -> PartitionMap:
        """Ask for the owner of each partition."""

    def size(self) -> int:
        """Return the number of rows."""

    def is_on_disk(self) -> bool:
        """Return whether nodes keep the rows on disk, and still have them after a restart."""


class CacheScan:
    """Reads partitions in one thread, over a separate connection to each owner in turn.

    Iterate over `series` or `pages` once. `close` from any thread ends the scan at once. With a query, the scan gives
    the rows of that query, for `PIECE_PARTITIONS` partitions at once.
    """

    def __init__(
        self,
        router: Router,
        cache: CacheLike,
        partitions: Iterable[int],
        sizes: PageSizes,
        baseline: Baseline,
        query: RowQuery | None = None,
    ) -> None:
        self._router = router
        self._cache = cache
        self._pieces = Pieces(partitions) if query else None
        self._pending = deque(self._pieces.partitions if self._pieces else partitions)
        self._query = query
        self._progress: dict[int, PartitionProgress] = {}
        self._sizes = sizes
        self._baseline = baseline
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._closed = False
        self._attempts = 0

    def close(self) -> None:
        """End the scan. A thread inside `pages` gets no further page."""
        with self._lock:
            self._closed = True
            if self._channel:
                self._channel.close()

    def _is_closed(self) -> bool:
        return self._closed

    def pages(self) -> Iterator[ScannedPage]:
        """Yield the pages of `series` one by one."""
        for series in self.series():
            yield from series.pages()

    def series(self) -> Iterator[ScannedSeries]:
        """Yield series of pages until all partitions are read. Each is valid until the next is requested.

        Partitions come in the requested order; adjacent partitions of one owner are read several at a time.
        Blocks. When a node is lost, waits for new owners of its partitions.

        Raises:
            PartitionsLost: Rows were lost with the nodes that held them.
            ConnectionFailed, ServerError: Several attempts in a row failed.
            IgniteTfError: The cluster named no reachable owner of a partition for 40 s.
        """
        owners: Mapping[int, uuid.UUID] = self._baseline.owners
        while self._pending and not self._is_closed():
            failure: IgniteTfError | None = None
            try:
                for series in self._read_first_owner(owners):
                    self._attempts = 0
                    yield series
                    if self._is_closed():
                        return
            except (ConnectionLost, ConnectionFailed, ServerError) as error:
                failure = error
            if self._is_closed():
                return
            if failure:
                owners = self._recover(failure)

    def _read_first_owner(self, owners: Mapping[int, uuid.UUID]) -> Iterator[ScannedSeries]:
        node_id = self._owner(owners, self._pending[0])
        # Read up to the next owner only, to keep the requested order wherever the partitions lie.
        mine = deque(takewhile(lambda each: self._owner(owners, each) == node_id, self._pending))
        others = list(islice(self._pending, len(mine), None))
        channel = self._open(node_id)
        scan = self._reading(channel, mine)
        try:
            yield from scan.series()
        except BaseException:
            channel.close()
            raise
        finally:
            self._pending = deque([*mine, *others])
        self._let_go(channel, is_quiet=scan.is_quiet)

    def _owner(self, owners: Mapping[int, uuid.UUID], partition: int) -> uuid.UUID:
        return owners[self._pieces.leader(partition) if self._pieces else partition]

    def _reading(self, channel: Channel, mine: deque[int]) -> OwnerScan | OwnerQuery:
        if self._query and self._pieces:
            return OwnerQuery(channel, self._query, self._pieces, mine, self._progress, self._sizes)
        rows = self._baseline.rows_of_a_node
        return OwnerScan(channel, self._cache.cache_id, mine, self._progress, self._sizes, rows)

    def _let_go(self, channel: Channel, *, is_quiet: bool) -> None:
        with self._lock:
            self._channel = None
            if is_quiet and not self._closed:
                self._router.give_back(channel)
                return
        channel.close()

    def _open(self, node_id: uuid.UUID) -> Channel:
        node = self._find(node_id)
        if node is None:
            raise ConnectionFailed(f"Ignite node {node_id} has left the cluster")
        channel = self._router.open_to(node)
        with self._lock:
            self._channel = channel
            if self._closed:
                channel.close()
        return channel

    def _find(self, node_id: uuid.UUID) -> Node | None:
        known = {node.node_id: node for node in self._router.known_nodes}
        if node_id not in known:
            known = {node.node_id: node for node in self._router.nodes()}
        return known.get(node_id)

    def _recover(self, failure: IgniteTfError) -> Mapping[int, uuid.UUID]:
        """Wait until every pending partition has an owner again. Return the new owners."""
        self._attempts += 1
        if isinstance(failure, ServerError):
            self._check_transient(failure)
        if self._attempts > MAX_ATTEMPTS:
            raise failure
        owners = wait_for(self._current_owners, RECOVERY_TIMEOUT_S)
        if owners is None:
            raise IgniteTfError(
                f"reading cache {self._cache.name!r} stopped ({failure}), and the cluster named no reachable "
                f"owner of partitions {format_ranges(sorted(self._pending))} "
                f"for {RECOVERY_TIMEOUT_S:g} s"
            ) from failure
        return owners

    def _check_transient(self, failure: ServerError) -> None:
        words = failure.server_message
        if any(word in words for word in _LOST):
            lost = list(self._pending)
            raise PartitionsLost(self._cache.name, lost, f"the cluster reports: {words}") from failure
        if failure.status == Status.CACHE_DOES_NOT_EXIST:
            raise CacheNotFound(self._cache.name, (), 1) from failure
        if not any(word in words for word in _TRANSIENT):
            raise failure

    def _current_owners(self) -> Mapping[int, uuid.UUID] | None:
        try:
            alive = [node.node_id for node in self._router.nodes()]
            self._check_lost(alive)
            partition_map = self._cache.partition_map()
        except (ConnectionLost, ConnectionFailed):
            return None
        owners = partition_map.primary_of()
        if not partition_map.partitioned:
            return dict.fromkeys(self._pending, alive[0])
        complete = all(owners.get(partition) in alive for partition in self._pending)
        has_settled = complete and self._router.all_answer({owners[partition] for partition in self._pending})
        return owners if has_settled else None

    def _check_lost(self, alive: Iterable[uuid.UUID]) -> None:
        lost = self._baseline.lost(alive, self._pending)
        # If rows are on disk, the cluster itself knows which are lost and refuses to read those (_LOST).
        if lost and not self._cache.is_on_disk():
            departed = len(self._baseline.nodes - frozenset(alive))
            raise PartitionsLost(
                self._cache.name,
                lost,
                f"{departed} of {len(self._baseline.nodes)} nodes left and the cache keeps "
                f"{self._baseline.backups} backups. Load the data again with more backups, or bring the nodes back",
            )
