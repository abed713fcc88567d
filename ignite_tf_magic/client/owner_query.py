"""Reading partitions from one node by a SQL statement: what it chooses of the rows, and of each row, alone is sent.

A statement is asked for many partitions at once: nodes find the rows of some by looking through the keys of all, 60
times as fast as they send rows. It goes to the owner of the first of them, which asks others for what they own, if any
do. Behind a lost node such a piece is read again from its start, and rows already delivered are recognised by the hash
of their encoded key.
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
    """A statement that gives rows of a cache.

    Attributes:
        statement: Its first column is the key, the others what is read of a row.
        args: For each `?` in it.
        num_columns: How many columns it has.
        row_bytes: The most bytes of a row of it; None where they are those of the cache's rows.
    """

    statement: str
    args: tuple[Any, ...] = ()
    num_columns: int = 2
    row_bytes: int | None = None

    def page_rows(self, partitions: Iterable[int], sizes: PageSizes, node: Any) -> int:
        """Return how many rows to ask a node for at once, so that they are no more bytes than those of a scan."""
        if self.row_bytes is not None:
            return max(1, min(_MOST_PAGE_ROWS, PAGE_BYTES // self.row_bytes))
        return min(sizes.page_rows(partition, node) for partition in partitions)


class Pieces:
    """Which partitions are asked for together: those that follow one another in the order of a reading.

    Attributes:
        partitions: All, in the order in which they are read.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self.partitions = list(partitions)
        self._first = {
            partition: self.partitions[at - at % PIECE_PARTITIONS]
            for at, partition in enumerate(self.partitions)
        }

    def leader(self, partition: int) -> int:
        """Return the first partition of a partition's piece: the piece is read from the owner of that."""
        return self._first[partition]

    def first(self, pending: Iterable[int]) -> list[int]:
        """Return the piece that is to be read next."""
        partitions = iter(pending)
        leader = next(partitions)
        return [leader, *takewhile(lambda each: self._first[each] == leader, partitions)]


class OwnerQuery:
    """Reads partitions from one node over one channel, which it has to itself. One thread.

    Args:
        channel: An open channel to the node; closed by its owner, also to interrupt the reading.
        query: What is read.
        pieces: Of which partitions.
        pending: What to read of them, in this order. Finished ones leave the deque; after an error it holds what is
            left to be read.
        progress: How far a piece was read that has been begun, by the first of its partitions; kept up to date.
        sizes: What is known of the partitions; learns from this reading how large rows are.
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
        """Whether no answer is under way: the channel can serve somebody else."""
        return not self._is_asked

    def series(self) -> Iterator[ScannedSeries]:
        """Yield the pages in order; each series is valid until the next is asked for.

        Raises:
            ConnectionLost: The node went away.
            ServerError: The node refused the statement.
            RemoteProtocolError: A page is corrupted.
            IgniteTfError: The node cannot look at some partitions alone.
        """
        if Feature.QUERY_PARTITIONS not in self._channel.features:
            raise IgniteTfError(
                f"the Ignite node at {self._channel.endpoint} cannot run a statement over some partitions alone; "
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
        """Ask for the next partitions; none where all were read."""
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
        """Note what a page brought; give it without the rows delivered before."""
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
