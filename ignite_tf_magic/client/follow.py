"""Follows a cache: yields its existing rows, then every row that is put on any node.

    with follow(client.cache("EVENTS")) as following:
        for followed in following.pages():
            decode(followed.page)

A continuous query (`event_stream`) reports changes. A scan of the whole cache (`cache_scan`) reads the existing rows.
The scan is repeated whenever the query's stream has ended, to find rows that were missed. The query begins before the
scan, and its changes are held back until the scan has finished. So a row that is put during the scan is in at least
one of them, and an older value of it does not come last. `news` removes rows that have already been delivered.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from typing import TypeVar

from ignite_tf_magic.client.cache_scan import RECOVERY_TIMEOUT_S, Baseline
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.event_stream import EventStream
from ignite_tf_magic.client.news import FollowedPage, NewsFilter
from ignite_tf_magic.client.own_events import PartitionFilter
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import (
    ConnectionFailed,
    ConnectionLost,
    IgniteTfError,
    PartitionsLost,
    ServerError,
)
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.ops import Status

T = TypeVar("T")
ROOM_BYTES = 64 * 1024 * 1024
MOST_REMEMBERED = 8_000_000
_TURN_S = 1.0  # longest wait for changes before checking whether the stream has ended


def follow(
    cache: Cache,
    *,
    after: int | None = None,
    partitions: Collection[int] | None = None,
    pause_s: float | None = None,
    room_bytes: int = ROOM_BYTES,
    most_remembered: int = MOST_REMEMBERED,
) -> Follow:
    """Follow a cache; see `Follow` for the guarantees. Close the result, or use it as a context manager.

    Args:
        cache: The cache to follow.
        after: Skip existing rows whose keys are not larger than this; keys must be whole numbers. Right for caches
            whose rows are put in the order of their keys, each once; see `Follow.resume_after`.
        partitions: Follow only rows of these partitions. Keys must be whole numbers, text or UUIDs, in a cache with
            Ignite's default affinity. Rows of other partitions are still received, and dropped here.
        pause_s: Yield a page without rows whenever no row has come for this time; None never yields one.
        room_bytes: Size of the buffer for changes when the reader is slower than the writers.
        most_remembered: Number of delivered rows to remember, in 16 bytes each.
    """
    return Follow(cache, after, partitions, pause_s, room_bytes, most_remembered)


class Follow(Closing):
    """Reads the rows of a cache as they come, in one thread. `close` from any thread ends it.

    - Every row that exists at the beginning, or is put later, comes at least once. That includes the loss of nodes if
      their partitions have other copies. If a row is put repeatedly, its newest value comes last; older values may be
      skipped, and may be repeated before the newest. There is no other order.
    - A row comes once, unless it was put again in between, as long as at most `most_remembered` rows were read. Rows
      read earlier than those may be repeated after a stream of changes has ended.
    - Removals of rows are not reported. A removed row that is put again comes again, except if both happened while
      there was no stream and the value is the same.
    - Memory is bounded by `room_bytes` and one message, 16 bytes for each remembered row, and the pages of a scan.
    """

    def __init__(
        self,
        cache: Cache,
        after: int | None,
        partitions: Collection[int] | None,
        pause_s: float | None,
        room_bytes: int,
        most_remembered: int,
    ) -> None:
        self._cache = cache
        self._resume_after = after
        self._partitions = None if partitions is None else frozenset(partitions)
        self._filter: PartitionFilter | None = None
        self._pause_s = pause_s
        self._room_bytes = room_bytes
        self._news = NewsFilter(cache.name, after, most_remembered)
        self._sizes = PageSizes()
        self._baseline: Baseline | None = None
        self._stream: EventStream | None = None
        self._is_behind = False
        self._is_closed = False
        self._lock = threading.Lock()
        self.num_streams = 0
        self.last_end: IgniteTfError | None = None

    @property
    def resume_after(self) -> int | None:
        """The key to pass as `after` when following is resumed later; None without `after`.

        All rows with keys up to this one have come, if each row is put only after those with smaller keys. It is the
        largest key that had come when the last finished scan began. `look_again` brings it up to date.
        """
        return self._resume_after

    @property
    def node_id(self) -> uuid.UUID | None:
        """The node that reports changes; None before it is known."""
        return self._stream.node_id if self._stream else None

    @property
    def has_forgotten(self) -> bool:
        """Whether more rows were read than are remembered, so that some may be repeated."""
        return self._news.has_forgotten

    def look_again(self) -> None:
        """Request a scan of the whole cache before the next changes are yielded."""
        self._is_behind = True

    def close(self) -> None:
        """Stop following. A thread inside `pages` gets no further page."""
        with self._lock:
            self._is_closed = True
            if self._stream:
                self._stream.close()

    def pages(self) -> Generator[FollowedPage, None, None]:
        """Yield rows forever. Blocks until rows come or `pause_s` has passed.

        Raises:
            CacheNotFound: The cache does not exist, or no longer exists.
            PartitionsLost: Rows were lost with the nodes that held them.
            SchemaError: A key is not a whole number, and `after` was passed; or the partition of a key is unknown here.
            ConfigError: Partitions were passed, but only the cluster knows which keys belong to a partition.
            ConnectionFailed, ServerError: The cluster could not be reached for 40 s, or refuses.
        """
        while not self._is_closed:
            if self._stream is None or self._stream.is_over:
                self._begin_stream()
            elif self._is_behind:
                yield from self._look_through()
            else:
                yield from self._changes(self._stream)

    def _changes(self, stream: EventStream) -> Iterator[FollowedPage]:
        wait_s = _TURN_S if self._pause_s is None else self._pause_s
        until = time.monotonic() + (wait_s or _TURN_S)
        while told := stream.take(wait_s):
            events = self._filter.own(told) if self._filter else told
            followed = self._news.of_events(events) if events else None
            if followed and followed.page.num_rows:
                yield followed
                return
            if time.monotonic() >= until:  # rows of other partitions keep coming
                break
        if self._pause_s is not None and stream.end is None:
            yield FollowedPage(Page(None, 0, memoryview(b""), has_more=True), ())

    def _begin_stream(self) -> None:
        """Begin another stream. Afterwards the cache must be scanned for changes that the last stream missed."""
        if self._stream:
            self.last_end = self._stream.end
            self._stream.close()
        if self._partitions is not None and self._filter is None:
            dealt = self._persist(self._cache.partition_map)
            self._filter = PartitionFilter(self._cache.name, self._partitions, dealt)
        stream = self._persist(self._subscribe)
        with self._lock:
            self._stream, self._is_behind = stream, True
            self.num_streams += 1
            if self._is_closed:
                stream.close()

    def _subscribe(self) -> EventStream:
        """Begin a stream on the first node that accepts it, starting with the node of the control channel."""
        client = self._cache.client
        here = client.router.control_node_id()
        failure: IgniteTfError | None = None
        for node in sorted(client.nodes(), key=lambda node: node.node_id != here):
            try:
                channel = client.router.open_to(node)
            except ConnectionFailed as error:
                failure = error
                continue
            try:
                return EventStream(channel, self._cache.cache_id, self._room_bytes)
            except BaseException:
                channel.close()
                raise
        raise failure or ConnectionFailed("the cluster lists no node")

    def _look_through(self) -> Iterator[FollowedPage]:
        """Yield those rows of the cache that have not come yet."""
        baseline = self._persist(self._new_baseline)
        self._is_behind, is_done = False, False
        had_come = self._news.largest_key
        try:
            with closing(self._cache.scan(sorted(self._wanted(baseline)), self._sizes, baseline)) as scan:
                for scanned in scan.pages():
                    if self._is_closed:
                        return
                    page = self._news.of_page(scanned.page)
                    if page.num_rows:
                        yield FollowedPage(page, None)
            self._baseline, self._resume_after, is_done = baseline, had_come, not self._is_closed
        finally:
            self._is_behind = self._is_behind or not is_done

    def _wanted(self, baseline: Baseline) -> Collection[int]:
        return baseline.owners if self._partitions is None else self._partitions

    def _new_baseline(self) -> Baseline:
        """Return a new baseline after comparing it with that of the last scan.

        Raises:
            PartitionsLost: Too many nodes have left since the last scan of the cache.
        """
        baseline = self._cache.baseline()
        before = self._baseline
        lost = before.lost(baseline.nodes, self._wanted(before)) if before else []
        if before and lost and not self._cache.is_on_disk():
            departed = len(before.nodes - baseline.nodes)
            raise PartitionsLost(
                self._cache.name,
                lost,
                f"{departed} of {len(before.nodes)} nodes left while it was followed, and it keeps {before.backups} "
                "backups. Rows not yet delivered are lost; load them again, into a cache with more backups",
            )
        return baseline

    def _persist(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` repeatedly while the cluster recovers from a loss."""
        failure: IgniteTfError | None = None

        def outcome() -> tuple[T] | None:
            nonlocal failure
            try:
                return (attempt(),)
            except (ConnectionLost, ConnectionFailed, ServerError) as error:
                if isinstance(error, ServerError) and error.status == Status.CACHE_DOES_NOT_EXIST:
                    self._cache.client.cache(self._cache.name)
                if self._is_closed:
                    raise
                failure = error
                return None

        found = wait_for(outcome, RECOVERY_TIMEOUT_S)
        if found is None:
            raise failure or ConnectionFailed(f"cache {self._cache.name!r} cannot be followed")
        return found[0]
