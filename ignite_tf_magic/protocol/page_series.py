"""Series of pages, as objects for Python and as a table for compiled code."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page


class PageEntry(ctypes.Structure):
    """A page in the format of _rows.c: the address, size in bytes and number of its rows."""

    _fields_ = [("rows", ctypes.c_void_p), ("num_bytes", ctypes.c_int64), ("num_rows", ctypes.c_int64)]


@dataclass(frozen=True, slots=True)
class SeriesMark:
    """A position in a series, to return to."""

    entries: bytes
    num_rows: int


class PageSeries:
    """A series of pages, from which a decoder takes rows until none are left.

    The decoder takes rows either page by page (`first`, `drop`) or through the table (`table`, `took`).

    Args:
        pages: The pages, in order; empty if there is a table.
        table: An array of `PageEntry`. The caller keeps its memory alive.
        num_pages: Number of entries of the table that belong to the series.
        num_rows: Number of rows of these entries.
    """

    __slots__ = ("_kept", "_pages", "_table", "num_pages", "num_rows")

    def __init__(
        self, pages: Collection[Page], table: Any = None, num_pages: int = 0, num_rows: int = 0
    ) -> None:
        self._pages = deque(pages)
        self._table = table
        self._kept: Any = None
        self.num_pages = num_pages or len(pages)
        self.num_rows = num_rows or sum([page.num_rows for page in pages])

    def table(self) -> Any:
        """Return an array of `PageEntry` with at least `num_pages` entries."""
        if self._table is None:
            self._table, self.num_pages = page_table(self._pages), len(self._pages)
            self._kept, self._pages = self._pages, deque()
        return self._table

    def took(self, num_rows: int) -> None:
        """Record that rows were taken through the table."""
        self.num_rows -= num_rows

    def mark(self) -> SeriesMark:
        """Return the position for `return_to`. It is valid as long as rows are taken only through the table."""
        table = self.table()
        return SeriesMark(ctypes.string_at(table, self.num_pages * ctypes.sizeof(PageEntry)), self.num_rows)

    def return_to(self, mark: SeriesMark) -> None:
        """Put back all rows taken since the mark."""
        ctypes.memmove(self._table, mark.entries, len(mark.entries))
        self.num_rows = mark.num_rows

    def first(self) -> Page:
        """Return the next page with rows. There is one as long as `num_rows` is not 0."""
        self._materialise()
        while not self._pages[0].num_rows:
            self._pages.popleft()
        return self._pages[0]

    def drop(self, num_rows: int, num_bytes: int) -> None:
        """Remove rows from the beginning of the first page."""
        page = self._pages[0]
        self._pages[0] = page._replace(num_rows=page.num_rows - num_rows, rows=page.rows[num_bytes:])
        self.num_rows -= num_rows

    def pages(self) -> list[Page]:
        """Return all pages; only for a series from which no row was taken."""
        self._materialise()
        return list(self._pages)

    def _materialise(self) -> None:
        if self._table is not None:
            entries, self._table = self._table[: self.num_pages], None
            self._pages = deque(Page(None, e.num_rows, _view(e), has_more=False) for e in entries)


def page_table(pages: Collection[Page]) -> Any:
    """Return an array of `PageEntry` for pages, which must outlive it."""
    entries: Any = [(address_of(page.rows), len(page.rows), page.num_rows) for page in pages]
    return (PageEntry * len(entries))(*entries)


# The address of empty data, because in C even adding 0 to a null pointer is undefined.
_NOWHERE = ctypes.c_uint8()
_NOWHERE_ADDRESS = ctypes.addressof(_NOWHERE)


def address_of(view: memoryview) -> int:
    """Return the memory address of the bytes of a view."""
    if not len(view):
        return _NOWHERE_ADDRESS
    if view.readonly:
        return int(np.frombuffer(view, np.uint8).ctypes.data)
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _view(entry: PageEntry) -> memoryview:
    return memoryview((ctypes.c_uint8 * entry.num_bytes).from_address(entry.rows or 0)).cast("B")
