"""Reads partitions from one node with a SQL statement, so that the node sends only the selected rows and columns.

One statement covers many partitions, because a node finds the rows of some partitions by looking through the keys of
all. That is 60 times as fast as sending the rows. The statement goes to the owner of the first partition, which asks
other nodes for partitions that they own. When a node is lost, the group of partitions (a piece) is read again from its
start. Rows already delivered are recognized by the hash of their encoded key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ignite_tf_magic.client.channel import Channel, payload_of
from ignite_tf_magic.client.owner_scan import PartitionProgress
from ignite_tf_magic.client.page_sizes import PAGE_BYTES, PageSizes
from ignite_tf_magic.client.scanned_pages import ScannedSeries, index, undelivered, used_meanwhile
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.protocol import messages, sql
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page, Request
from ignite_tf_magic.protocol.ops import Feature, Operation
from ignite_tf_magic.protocol.page_series import PageSeries

PIECE_PARTITIONS = 64
_MOST_PAGE_ROWS = 16 * 1024


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A SQL statement that selects rows of a cache.

    Attributes:
        statement: The statement. Its first column is the key, the others are the values to read.
        args: Values for each `?` in the statement.
        num_columns: Number of columns.
        row_bytes: Maximum bytes of a selected row; None if it can be as large as the cache's rows.
    """

    statement: str
    args: tuple[Any, ...] = ()
    num_columns: int = 2
    row_bytes: int | None = None

    def page_rows(self, partitions: Iterable[int], sizes: PageSizes, node: Any) -> int:
        """Return the number of rows to request at once, so that a page has no more bytes than a page of a scan."""
        if self.row_bytes is not None:
            return max(1, min(_MOST_PAGE_ROWS, PAGE_BYTES // self.row_bytes))
        return min(sizes.page_rows(partition, node) for partition in partitions)


class Pieces:
    """Groups of adjacent partitions, in reading order; a statement reads one group (a piece).

    Attributes:
        partitions: All partitions, in reading order.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self.partitions = list(partitions)
        self._first = {
            partition: self.partitions[at - at % PIECE_PARTITIONS]
            for at, partition in enumerate(self.partitions)
        }

    def leader(self, partition: int) -> int:
        """Return the first partition of a partition's piece. The owner of that partition answers for the piece."""
        return self._first[partition]

    def first(self, pending: Iterable[int]) -> list[int]:
        """Return the next piece to read."""
        partitions = iter(pending)
        leader = next(partitions)
        return [leader, *takewhile(lambda each: self._first[each] == leader, partitions)]


class OwnerQuery:
    """Reads partitions from one node over one channel that nothing else uses. One thread.

    Args:
        channel: An open channel to the node. Its owner closes it, also to interrupt the scan.
        query: The statement.
        pieces: The pieces of all partitions.
        pending: The partitions to read, in this order. Finished partitions leave the deque; after an error it holds
            those that are left.
        progress: The progress of each piece that was begun, by its first partition; kept up to date.
        sizes: The known sizes of the partitions; updated with the size of rows by this scan.
    """

    def __init__(
        self,
        channel: Channel,
        query: RowQuery,
        pieces: Pieces,
        pending: deque[int],
        progress: dict[int, PartitionProgress],
        sizes: PageSizes,
    ) -> None:
        self._channel = channel
        self._query = query
        self._pieces = pieces
        self._pending = pending
        self._progress = progress
        self._sizes = sizes
        self._request, self._is_asked = Request(0), False
        self._cursor = 0
        self._repeated = np.empty(0, np.uint64)

    @property
    def is_quiet(self) -> bool:
        """Whether no answer is pending, so that something else can use the channel."""
        return not self._is_asked

    def series(self) -> Iterator[ScannedSeries]:
        """Yield the pages in order. Each series is valid until the next is requested.

        Raises:
            ConnectionLost: The node went away.
            ServerError: The node refused the statement.
            RemoteProtocolError: A page is corrupted.
            IgniteTfError: The node cannot run a statement on some partitions alone.
        """
        if Feature.QUERY_PARTITIONS not in self._channel.features:
            raise IgniteTfError(
                f"the Ignite node at {self._channel.endpoint} cannot query single partitions; "
                "Ignite 2.12 or later can"
            )
        piece = self._ask_for_piece()
        while piece:
            page = self._receive()
            kept, following = self._account(piece, page), piece
            if page.has_more:
                self._ask(sql.next_rows(self._cursor))
            else:
                following = self._ask_for_piece()
            yield from used_meanwhile(self._channel, ScannedSeries([piece[0]], PageSeries([kept])))
            piece = following

    def _ask_for_piece(self) -> list[int]:
        """Request the next piece and return its partitions; empty if all were read."""
        if not self._pending:
            return []
        piece, query = self._pieces.first(self._pending), self._query
        progress = self._progress.setdefault(piece[0], PartitionProgress())
        self._repeated = np.concatenate([np.empty(0, np.uint64), *progress.delivered])
        page_rows = query.page_rows(piece, self._sizes, self._channel.node_id)
        partitions = piece if piece[0] >= 0 else None
        self._ask(
            sql.execute(query.statement, query.args, page_rows, with_names=False, partitions=partitions)
        )
        return piece

    def _ask(self, request: Request) -> None:
        self._channel.submit(request)
        self._request, self._is_asked = request, True

    def _receive(self) -> Page:
        answer, request = self._channel.next_answer(), self._request
        self._is_asked = False
        if request.operation != Operation.QUERY_SQL_FIELDS:
            return messages.parse_next_page(payload_of(answer, request))
        page = sql.parse_first_page(payload_of(answer, request), self._query.num_columns)
        self._cursor = page.cursor or 0
        return page

    def _account(self, piece: list[int], page: Page) -> Page:
        """Record a page's rows and return it without those delivered before."""
        progress = self._progress[piece[0]]
        if page.num_rows and self._query.row_bytes is None:
            starts, _ = index(page, self._query.num_columns - 1)
            self._sizes.saw(page.num_rows, int(np.diff(starts).max()))
        if page.has_more or len(self._repeated):
            page = undelivered(page, progress.delivered, self._repeated, self._query.num_columns - 1)
        if not page.has_more:
            self._progress.pop(piece[0])
            for _ in piece:
                self._pending.popleft()
        return page
