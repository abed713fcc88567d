"""Reading partitions as a stream of pages: several cursors under way, rows in a fixed order, each row once.

Rows come partition after partition in the order asked for, within a partition in Ignite's own order
(by key hash), whatever the page sizes: two readings of unchanged data give the same sequence.

When a node is lost, or a page turns out too large, a partition is read again from its start, on its new
owner or in smaller pages; rows already delivered are recognised by the hash of their encoded key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.channel import Channel, payload_of
from ignite_tf_magic.client.page_sizes import IN_FLIGHT_BYTES, PageSizes, PartitionStats
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.messages import Page, Request
from ignite_tf_magic.protocol.walk_compiled import index_rows, measure_rows

MAX_CURSORS = 8
MAX_WAITING_PAGES = 4


@dataclass(slots=True)
class ScannedPage:
    """Rows of one partition. Valid until the next page is asked for."""

    partition: int
    page: Page

    def row_starts(self) -> NDArray[np.int64]:
        """Find where each row starts: num_rows + 1 offsets into `page.rows`."""
        return _index(self.page)[0]

    def cut(self, first: int, last: int) -> Page:
        """Give some of the rows as a page of their own."""
        starts = self.row_starts()
        rows = self.page.rows[int(starts[first]) : int(starts[last])]
        return Page(None, last - first, rows, self.page.has_more)


def _index(page: Page) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    starts, hashes = np.empty(page.num_rows + 1, np.int64), np.empty(page.num_rows, np.uint64)
    index_rows(page.rows, page.num_rows, starts, hashes)
    return starts, hashes


@dataclass(slots=True)
class Pending:
    """A partition that has not been read to its end, and the rows of it already delivered."""

    partition: int
    delivered: list[NDArray[np.uint64]] = field(default_factory=list)
    rows: int = 0
    max_row_bytes: int = 0


@dataclass(slots=True)
class _Cursor:
    """One open scan: what it is reading, what is under way, and pages that came before their turn."""

    pending: Pending
    page_rows: int
    reserved_bytes: int
    repeated: NDArray[np.uint64]
    cursor_id: int | None = None
    waiting: deque[Page] = field(default_factory=deque)
    is_asking: bool = False
    at_end: bool = False


class OwnerScan:
    """Reads partitions from one node over one channel, which it has to itself. One thread.

    Args:
        channel: An open channel to the node; closed by its owner, also to interrupt the reading.
        cache: Id of the cache.
        pending: What to read, in this order. Finished partitions leave the deque; after an error it
            holds what is left to be read.
        sizes: What is known of the partitions; learns from this reading.
    """

    def __init__(self, channel: Channel, cache: int, pending: deque[Pending], sizes: PageSizes) -> None:
        self._channel = channel
        self._cache = cache
        self._pending = pending
        self._sizes = sizes
        self._cursors: deque[_Cursor] = deque()
        self._asked: dict[int, tuple[_Cursor | None, Request]] = {}
        self._reserved_bytes = 0

    def pages(self) -> Iterator[ScannedPage]:
        """Yield the pages in order; each is valid until the next is asked for.

        Raises:
            ConnectionLost: The node went away.
            ServerError: The node refused to read on.
            RemoteProtocolError: A page is corrupted.
        """
        self._open_more()
        while self._cursors:
            head = self._cursors[0]
            page = head.waiting.popleft() if head.waiting else self._receive(head)
            if page is None:
                continue
            if not head.at_end and not head.is_asking:
                self._ask_on(head)
            yield from self._deliver(head, page)
            if head.at_end and not head.waiting:
                self._finish(head)

    def _open_more(self) -> None:
        for pending in list(islice(self._pending, len(self._cursors), MAX_CURSORS + 1)):
            page_bytes = self._sizes.page_bytes(pending.partition)
            full = len(self._cursors) >= MAX_CURSORS or self._reserved_bytes + page_bytes > IN_FLIGHT_BYTES
            if full and self._cursors:
                return
            self._open(pending, page_bytes)

    def _open(self, pending: Pending, page_bytes: int) -> None:
        repeated = np.concatenate(pending.delivered) if pending.delivered else np.empty(0, np.uint64)
        cursor = _Cursor(pending, self._sizes.page_rows(pending.partition), page_bytes, repeated)
        self._reserved_bytes += page_bytes
        self._cursors.append(cursor)
        self._scan(cursor)

    def _scan(self, cursor: _Cursor) -> None:
        self._ask(cursor, messages.scan(self._cache, cursor.pending.partition, cursor.page_rows))

    def _ask(self, cursor: _Cursor | None, request: Request) -> None:
        self._asked[self._channel.submit(request)] = (cursor, request)
        if cursor is not None:
            cursor.is_asking = True

    def _ask_on(self, cursor: _Cursor) -> None:
        if cursor.cursor_id is not None:
            self._ask(cursor, messages.next_page(cursor.cursor_id))

    def _receive(self, head: _Cursor) -> Page | None:
        """Take one answer in: give the head's page, or put another cursor's aside."""
        answer = self._channel.next_answer()
        cursor, request = self._asked.pop(answer.request_id)
        payload = payload_of(answer, request)
        if cursor is None:
            return None
        cursor.is_asking = False
        if cursor.cursor_id is None:
            page = messages.parse_first_page(payload)
            cursor.cursor_id = page.cursor
        else:
            page = messages.parse_next_page(payload)
        cursor.at_end = not page.has_more
        if cursor is head:
            return page
        # The channel's buffer is reused before this page's turn comes.
        cursor.waiting.append(Page(page.cursor, page.num_rows, memoryview(bytes(page.rows)), page.has_more))
        if page.has_more and len(cursor.waiting) < MAX_WAITING_PAGES:
            self._ask_on(cursor)
        return None

    def _deliver(self, cursor: _Cursor, page: Page) -> Iterator[ScannedPage]:
        pending = cursor.pending
        largest = measure_rows(page.rows, page.num_rows)
        pending.max_row_bytes = max(pending.max_row_bytes, largest)
        self._sizes.saw_row(largest)
        if page.has_more or len(cursor.repeated):
            page = _without(page, cursor, pending)
        pending.rows += page.num_rows
        if page.num_rows:
            yield ScannedPage(pending.partition, page)
        if page.has_more and PageSizes.is_oversized(cursor.page_rows, pending.max_row_bytes):
            self._reopen(cursor)

    def _reopen(self, cursor: _Cursor) -> None:
        """Read a partition again in smaller pages, without the rows already delivered."""
        while cursor.is_asking:
            self._receive(cursor)
        cursor.waiting.clear()
        if not cursor.at_end and cursor.cursor_id is not None:
            self._ask(None, messages.close_cursor(cursor.cursor_id))
        self._sizes.saw_row(cursor.pending.max_row_bytes)
        cursor.page_rows = min(self._sizes.page_rows(cursor.pending.partition), cursor.page_rows)
        cursor.repeated = np.concatenate(cursor.pending.delivered)
        cursor.cursor_id, cursor.at_end = None, False
        self._scan(cursor)

    def _finish(self, cursor: _Cursor) -> None:
        self._cursors.popleft()
        self._reserved_bytes -= cursor.reserved_bytes
        pending = self._pending.popleft()
        self._sizes.finished(pending.partition, PartitionStats(pending.rows, pending.max_row_bytes))
        self._open_more()


def _without(page: Page, cursor: _Cursor, pending: Pending) -> Page:
    """Note the rows of a page as delivered; give it without those delivered before."""
    starts, hashes = _index(page)
    if len(cursor.repeated):
        kept = np.flatnonzero(~np.isin(hashes, cursor.repeated))
        hashes = hashes[kept]
        pieces = [page.rows[int(starts[row]) : int(starts[row + 1])] for row in kept]
        page = Page(page.cursor, len(pieces), memoryview(b"".join(pieces)), page.has_more)
    pending.delivered.append(hashes)
    return page


def pending_partitions(partitions: Sequence[int]) -> deque[Pending]:
    """Start with nothing delivered."""
    return deque(Pending(partition) for partition in partitions)
