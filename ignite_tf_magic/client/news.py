"""Selects the new rows of a followed cache: those not delivered yet, or delivered with another value."""

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
    """Rows of a cache, valid until the next page is requested.

    Attributes:
        page: The rows, encoded like those of a scan.
        event_types: For each row the change, CREATED or UPDATED; None if a scan found the rows.
    """

    page: Page
    event_types: tuple[EventType, ...] | None


class NewsFilter:
    """Selects new rows and remembers them. One thread.

    Args:
        cache: The cache's name, for errors.
        after: See `follow`.
        most_remembered: See `follow`.
    """

    def __init__(self, cache: str, after: int | None, most_remembered: int) -> None:
        self._cache = cache
        self._after = after
        self._remembered = RememberedRows(most_remembered)
        self.largest_key = after  # of the rows selected so far

    @property
    def has_forgotten(self) -> bool:
        """Whether rows delivered before may be selected again."""
        return self._remembered.has_forgotten

    def of_page(self, page: Page) -> Page:
        """Return the new rows of a scan's page, except those with keys up to `after`.

        Raises:
            SchemaError: A key is not a whole number, and `after` was passed.
        """
        if self._after is not None:
            starts = index(page)[0]
            keys = [self._whole(page.rows, start) for start in starts[:-1].tolist()]
            page = _only(page, [number for number, key in enumerate(keys) if key > self._after], starts)
        return _only(page, *self._take(page, ()))

    def of_events(self, events: Sequence[RowEvent]) -> FollowedPage:
        """Return the new rows among some changes. Removals are only remembered.

        Raises:
            SchemaError: As from `of_page`.
        """
        data = b"".join(part for event in events for part in (event.key, event.value))
        page = Page(None, len(events), memoryview(data), has_more=True)
        gone = [number for number, event in enumerate(events) if not event.is_row]
        numbers, starts = self._take(page, gone)
        return FollowedPage(
            _only(page, numbers, starts), tuple(events[number].event_type for number in numbers)
        )

    def _take(self, page: Page, gone: Sequence[int]) -> tuple[list[int], NDArray[np.int64]]:
        """Remember rows and removals. Return the numbers of the new rows, and the offsets of all rows."""
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
                f"cache {self._cache!r} cannot be followed after key {self._after}: it has a row with key {key!r}, and "
                "only whole numbers are ordered. Follow it without `after`"
            )
        return int(key)


def _only(page: Page, numbers: Sequence[int], starts: NDArray[np.int64]) -> Page:
    """Return a page with only some rows of another page, in order."""
    if len(numbers) == page.num_rows:
        return page
    pieces = [page.rows[int(starts[number]) : int(starts[number + 1])] for number in numbers]
    return page._replace(num_rows=len(pieces), rows=memoryview(b"".join(pieces)))
