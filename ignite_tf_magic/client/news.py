"""Which rows of a cache that is followed are news: those that have not come yet, or came with another value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ignite_tf_magic.client.remembered_rows import GONE, RememberedRows, hashes_of_rows
from ignite_tf_magic.client.scanned_pages import index
from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.continuous import RowEvent
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.ops import EventType
from ignite_tf_magic.protocol.read_values import read_value

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FollowedPage(NamedTuple):
    """Rows of a cache, valid until the next page is asked for.

    Attributes:
        page: The rows, encoded as those of a scan.
        event_types: What happened to each of them, CREATED or UPDATED; None when a scan found them.
    """

    page: Page
    event_types: tuple[EventType, ...] | None


class NewsFilter:
    """Lets news pass, and remembers them. One thread.

    Args:
        cache: Its name, for errors.
        after: See `follow`.
        most_remembered: See `follow`.
    """

    def __init__(self, cache: str, after: int | None, most_remembered: int) -> None:
        self._cache = cache
        self._after = after
        self._remembered = RememberedRows(most_remembered)
        self.largest_key = after  # of those that have passed

    @property
    def has_forgotten(self) -> bool:
        """Whether rows that came before may pass again."""
        return self._remembered.has_forgotten

    def of_page(self, page: Page) -> Page:
        """Return those rows of a scan's page that are news, without those up to `after`.

        Raises:
            SchemaError: A key is not a whole number, and `after` was given.
        """
        if self._after is not None:
            starts = index(page)[0]
            keys = [self._whole(page.rows, start) for start in starts[:-1].tolist()]
            page = _only(page, [number for number, key in enumerate(keys) if key > self._after], starts)
        return _only(page, *self._take(page, ()))

    def of_events(self, events: Sequence[RowEvent]) -> FollowedPage:
        """Return those rows that are news; of those that are gone it is noted.

        Raises:
            SchemaError: As `of_page`.
        """
        data = b"".join(part for event in events for part in (event.key, event.value))
        page = Page(None, len(events), memoryview(data), has_more=True)
        gone = [number for number, event in enumerate(events) if not event.is_row]
        numbers, starts = self._take(page, gone)
        return FollowedPage(
            _only(page, numbers, starts), tuple(events[number].event_type for number in numbers)
        )

    def _take(self, page: Page, gone: Sequence[int]) -> tuple[list[int], NDArray[np.int64]]:
        """Note rows as come, and those that are gone; gives the numbers of the news, and where the rows start."""
        starts, keys = index(page)
        rows = hashes_of_rows(page.rows, starts)
        rows[list(gone)] = GONE
        numbers = self._remembered.take(keys, rows)
        if self.largest_key is not None:
            had = [self._whole(page.rows, int(starts[number])) for number in numbers]
            self.largest_key = max([self.largest_key, *had])
        return numbers, starts

    def _whole(self, rows: memoryview, start: int) -> int:
        key = read_value(Reader(rows, start))
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            raise SchemaError(
                f"cache {self._cache!r} is to be followed after key {self._after}, and has a row with key {key!r}; "
                "only whole numbers have an order to go on by. Follow it without `after`"
            )
        return int(key)


def _only(page: Page, numbers: Sequence[int], starts: NDArray[np.int64]) -> Page:
    """Return a page with some of the rows of another one, in order."""
    if len(numbers) == page.num_rows:
        return page
    pieces = [page.rows[int(starts[number]) : int(starts[number + 1])] for number in numbers]
    return page._replace(num_rows=len(pieces), rows=memoryview(b"".join(pieces)))
