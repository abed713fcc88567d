"""Reads partitions from one node as a stream of pages, with several open cursors, a fixed row order and each row once.

Rows come partition by partition in the requested order. Within a partition they come in Ignite's own order (by key
hash), whatever the page sizes. So two reads of unchanged data give the same sequence.

When a node is lost, or a page turns out too large, a partition is read again from its start, from its new owner or in
smaller pages. Rows already delivered are recognized by the hash of their encoded key.

Pages come in series. A series holds those pages of one receive that are next in order. A partition of a small cache is
one short page. Handling each page by itself in Python would take longer than moving its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from ignite_tf_magic.client.channel import Channel, payload_of, server_error
from ignite_tf_magic.client.page_sizes import IN_FLIGHT_BYTES, PageSizes, PartitionStats
from ignite_tf_magic.client.scanned_pages import ScannedSeries, undelivered, used_meanwhile
from ignite_tf_magic.protocol import messages, metrics
from ignite_tf_magic.protocol.connection import Fault, Response
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page, Request
from ignite_tf_magic.protocol.ops import Operation
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.sweep import Grown, Sweep, SweptSeries
from ignite_tf_magic.protocol.walk_compiled import library, measure_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_CURSORS = 8
MAX_WAITING_PAGES = 4
# Pages requested at once in a sweep. With more of them each receive brings several, and threads switch less often.
SWEPT_PAGES = 64
_MAX_SWEEPS = 8  # a partition that is larger than expected ends a sweep


@dataclass(slots=True)
class PartitionProgress:
    """How far a partition was read: the rows already delivered, and the size of the largest."""

    delivered: list[NDArray[np.uint64]] = field(default_factory=list)
    rows: int = 0
    max_row_bytes: int = 0


@dataclass(slots=True)
class _Cursor:
    """One open scan: its position, its pending request, and pages that arrived before their turn."""

    partition: int
    progress: PartitionProgress
    page_rows: int
    reserved_bytes: int
    repeated: NDArray[np.uint64]
    cursor_id: int | None = None
    waiting: deque[Page] = field(default_factory=deque)
    is_asking: bool = False
    at_end: bool = False
    num_borrowed: int = 0  # the last of the waiting pages: these lie in the channel's buffer

    @property
    def is_oversized(self) -> bool:
        """Whether further pages would exceed the bound on bytes."""
        return not self.at_end and PageSizes.is_oversized(self.page_rows, self.progress.max_row_bytes)

    def take_in(self, payload: memoryview) -> None:
        """Read an answer and queue its page."""
        self.is_asking = False
        if self.cursor_id is None:
            page = messages.parse_first_page(payload)
            self.cursor_id = page.cursor
        else:
            page = messages.parse_next_page(payload)
        self.at_end = not page.has_more
        self.waiting.append(page)
        self.num_borrowed += 1

    def keep_waiting(self) -> None:
        """Copy waiting pages out of the channel's buffer, which is about to be reused."""
        for number in range(len(self.waiting) - self.num_borrowed, len(self.waiting)):
            page = self.waiting[number]
            self.waiting[number] = page._replace(rows=memoryview(bytearray(page.rows)))
        self.num_borrowed = 0


class OwnerScan:
    """Reads partitions from one node over one channel that nothing else uses. One thread.

    Args:
        channel: An open channel to the node. Its owner closes it, also to interrupt the scan.
        cache: Id of the cache.
        pending: The partitions to read, in this order. Finished partitions leave the deque; after an error it
            holds those that are left.
        progress: The progress of each partition that was begun; kept up to date.
        sizes: The known sizes of the partitions; updated by this scan.
        node_rows: Number of the cache's rows on the node, including backup copies. 0 if unknown; then the node is not
            asked how full it is.
    """

    def __init__(
        self,
        channel: Channel,
        cache: int,
        pending: deque[int],
        progress: dict[int, PartitionProgress],
        sizes: PageSizes,
        node_rows: float = 0.0,
    ) -> None:
        self._channel = channel
        self._cache = cache
        self._pending = pending
        self._progress = progress
        self._sizes = sizes
        self._cursors: deque[_Cursor] = deque()
        self._node_rows = node_rows
        self._asked: dict[int, tuple[_Cursor | None, Request]] = {}
        self._region_question: int | None = None
        self._reserved_bytes = 0
        self._stops_at_sweep = False

    def series(self) -> Iterator[ScannedSeries]:
        """Yield the pages in order, all that are ready at once. Each series is valid until the next is requested.

        Raises:
            ConnectionLost: The node went away.
            ServerError: The node refused a request.
            RemoteProtocolError: A page is corrupted.
        """
        self._ask_region()
        for _ in range(_MAX_SWEEPS):
            yield from self._sweep()
            yield from self._read(until_sweep=True)
        yield from self._read(until_sweep=False)

    def _read(self, *, until_sweep: bool) -> Iterator[ScannedSeries]:
        """Read partitions of any number of pages: all, or only until the others are known to be one page each."""
        self._stops_at_sweep = False
        self._open_more(1)
        self._stops_at_sweep = until_sweep and library() is not None
        self._open_more()
        while self._cursors:
            if not self._cursors[0].waiting:  # reopening may have received the rest
                self._ask_on(self._cursors[0])  # no-op if already requested; never wait without a request
                self._receive()
            series = self._next_series()
            if series:
                yield from used_meanwhile(self._channel, series)
            if self._cursors and self._cursors[0].is_oversized:
                self._reopen(self._cursors[0])

    @property
    def is_quiet(self) -> bool:
        """Whether no answer is pending, so that something else can use the channel."""
        return not self._asked

    def _ask_region(self) -> None:
        """Ask how full the node is, if that helps. Until the answer arrives, the node is read with small pages."""
        if self._node_rows and self._sizes.lacks(self._channel.node_id, self._pending):
            request = metrics.data_regions()
            self._region_question = self._channel.submit(request)
            self._asked[self._region_question] = (None, request)

    def _note_region(self, answer: Response | Fault) -> None:
        """Record how full the node is: 0 bytes if it has no ignite-indexing or the user may not read its views."""
        used = metrics.parse_used_bytes(answer.payload) if isinstance(answer, Response) else 0
        self._sizes.note_region(self._channel.node_id, used, self._node_rows)

    def _sweep(self) -> Iterator[ScannedSeries]:
        """Read partitions by sweeps, if that is possible and as far as it is."""
        compiled = library()
        partitions = list(self._pending)
        is_free = not self._progress and not self._asked
        expected = self._sizes.one_page_each(partitions, self._channel.node_id) if is_free else None
        if compiled is None or expected is None:
            return
        first_id = self._channel.reserve_ids(len(partitions))
        sweep = Sweep(
            compiled, self._cache, expected, first_id, SWEPT_PAGES, IN_FLIGHT_BYTES, self._channel.buffer
        )
        self._channel.flush(sweep.requests())
        is_apt = True
        while not sweep.is_done and (is_apt or not sweep.is_idle):
            outcome = sweep.take()
            if isinstance(outcome, SweptSeries):
                series = self._swept(outcome, partitions)
                is_apt = is_apt and self._sizes.are_apt(expected, self._channel.node_id)
                yield from used_meanwhile(self._channel, series, sweep.requests() if is_apt else b"")
            elif isinstance(outcome, Fault):
                raise server_error(outcome, Operation.QUERY_SCAN)
            elif isinstance(outcome, Grown) and sweep.is_quiet:
                for cursor in sweep.open_cursors():
                    self._ask(None, messages.close_cursor(cursor))
                return
            else:
                sweep.received(self._channel.receive_into(sweep.space()))

    def _swept(self, swept: SweptSeries, partitions: list[int]) -> ScannedSeries:
        """Record what a series of a sweep showed."""
        mine = partitions[swept.first : swept.first + swept.series.num_pages]
        if not swept.as_expected:
            for partition, (num_rows, row_bytes) in zip(mine, measure_pages(swept.series), strict=True):
                self._sizes.saw(num_rows, row_bytes)
                self._sizes.finished(partition, PartitionStats(num_rows, row_bytes))
        for _ in mine:
            self._pending.popleft()
        return ScannedSeries(mine, swept.series)

    def _open_more(self, most: int = MAX_CURSORS) -> None:
        if self._stops_at_sweep and self._sizes.unread_are_one_page(self._channel.node_id):
            return
        for partition in list(islice(self._pending, len(self._cursors), MAX_CURSORS + 1)):
            page_bytes = self._sizes.page_bytes(partition, self._channel.node_id)
            full = len(self._cursors) >= most or self._reserved_bytes + page_bytes > IN_FLIGHT_BYTES
            if full and self._cursors:
                return
            self._open(partition, page_bytes)

    def _open(self, partition: int, page_bytes: int) -> None:
        progress = self._progress.setdefault(partition, PartitionProgress())
        repeated = np.concatenate(progress.delivered) if progress.delivered else np.empty(0, np.uint64)
        page_rows = self._sizes.page_rows(partition, self._channel.node_id)
        cursor = _Cursor(partition, progress, page_rows, page_bytes, repeated)
        self._reserved_bytes += page_bytes
        self._cursors.append(cursor)
        self._scan(cursor)

    def _scan(self, cursor: _Cursor) -> None:
        self._ask(cursor, messages.scan(self._cache, cursor.partition, cursor.page_rows))

    def _ask(self, cursor: _Cursor | None, request: Request) -> None:
        self._asked[self._channel.submit(request)] = (cursor, request)
        if cursor is not None:
            cursor.is_asking = True

    def _ask_on(self, cursor: _Cursor) -> None:
        can_ask = not cursor.at_end and not cursor.is_asking and len(cursor.waiting) < MAX_WAITING_PAGES
        if can_ask and cursor.cursor_id is not None:
            self._ask(cursor, messages.next_page(cursor.cursor_id))

    def _receive(self) -> None:
        """Receive all answers that have arrived, at least one."""
        for cursor in self._cursors:
            cursor.keep_waiting()
        for answer in self._channel.next_answers():
            asker, request = self._asked.pop(answer.request_id)
            if answer.request_id == self._region_question:
                self._note_region(answer)
                continue
            payload = payload_of(answer, request)
            if asker is not None:
                asker.take_in(payload)
        for cursor in islice(self._cursors, 1, None):
            self._ask_on(cursor)  # the first cursor asks once its rows are measured

    def _next_series(self) -> ScannedSeries | None:
        """Take the pages that are next in order, and open the next partitions."""
        taken = self._take_waiting()
        if not taken:
            return None
        measured = measure_pages(PageSeries([page for _, page in taken]))
        self._sizes.saw(
            sum(num_rows for num_rows, _ in measured), max(row_bytes for _, row_bytes in measured)
        )
        pages = [
            self._account(*each, row_bytes) for each, (_, row_bytes) in zip(taken, measured, strict=True)
        ]
        self._open_more()
        if self._cursors and not self._cursors[0].is_oversized:
            self._ask_on(self._cursors[0])
        return ScannedSeries([cursor.partition for cursor, _ in taken], PageSeries(pages))

    def _take_waiting(self) -> list[tuple[_Cursor, Page]]:
        taken = []
        for cursor in self._cursors:
            while cursor.waiting:
                taken.append((cursor, cursor.waiting.popleft()))
            cursor.num_borrowed = 0
            if not cursor.at_end:
                break
        return taken

    def _account(self, cursor: _Cursor, page: Page, row_bytes: int) -> Page:
        """Record a page's rows and return it without those delivered before."""
        progress = cursor.progress
        progress.max_row_bytes = max(progress.max_row_bytes, row_bytes)
        kept = page
        if page.has_more or len(cursor.repeated):
            kept = undelivered(page, progress.delivered, cursor.repeated)
        progress.rows += kept.num_rows
        if not page.has_more:
            self._finish(cursor)
        return kept

    def _finish(self, cursor: _Cursor) -> None:
        self._cursors.popleft()
        self._pending.popleft()
        self._reserved_bytes -= cursor.reserved_bytes
        progress = self._progress.pop(cursor.partition)
        self._sizes.finished(cursor.partition, PartitionStats(progress.rows, progress.max_row_bytes))

    def _reopen(self, cursor: _Cursor) -> None:
        """Read a partition again in smaller pages, without the rows already delivered."""
        while cursor.is_asking:
            self._receive()
        if cursor.at_end:
            return
        cursor.waiting.clear()
        cursor.num_borrowed = 0
        if cursor.cursor_id is not None:
            self._ask(None, messages.close_cursor(cursor.cursor_id))
        allowed = self._sizes.page_rows(cursor.partition, self._channel.node_id)
        cursor.page_rows = min(allowed, cursor.page_rows)
        cursor.repeated = np.concatenate(cursor.progress.delivered)
        cursor.cursor_id = None
        self._scan(cursor)
