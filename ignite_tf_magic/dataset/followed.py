"""Reads a followed cache as chunks of columns: first the existing rows, then endlessly new ones."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar
from weakref import WeakSet

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.follow import follow
from ignite_tf_magic.dataset.reader import RenewedDecoder
from ignite_tf_magic.dataset.source import Source
from ignite_tf_magic.errors import EmptyCache
from ignite_tf_magic.protocol.columns import ColumnChunk
from ignite_tf_magic.protocol.page_series import PageSeries

T = TypeVar("T")
# Seconds without rows after which a reading yields an empty chunk: TensorFlow can end it only between chunks.
_PAUSE_S = 0.25
# Seconds at the end of a process: the limit for closing a reading, the time after which nobody is iterating for
# certain, and the time for the function that closed it to return.
_END_S, _IDLE_S, _RETURN_S = 10.0, 0.1, 0.1


class FollowReader(Iterator[T]):
    """Reads a followed cache: endless rows, with an empty chunk whenever none have come for a while.

    The thread that iterates must call `close`. Raises what `Follow.pages` raises.

    Args:
        source: What to read.
        after: Leave out existing rows with keys up to this one; see `follow`.
        partitions: The partitions to follow; None for all.
        make: Turns a chunk into the item to yield.
    """

    def __init__(
        self,
        source: Source,
        after: int | None,
        partitions: Collection[int] | None,
        make: Callable[[ColumnChunk], T],
    ) -> None:
        if source.layout is None:
            raise EmptyCache(f"cache {source.cache!r} holds no rows, so their types are unknown")
        self._source = source
        self._make = make
        self._layout = source.layout
        self._client = source.clients.take()
        self._decoder = RenewedDecoder(source.layout, self._client)
        cache = Cache(self._client, source.cache)
        self._follow = follow(cache, after=after, partitions=partitions, pause_s=_PAUSE_S)
        self._pages = self._follow.pages()
        self._is_asked = False
        self._is_closed = threading.Event()
        _under_way.add(self)

    def __next__(self) -> T:
        self._is_asked = True
        try:
            series = PageSeries([next(self._pages).page])
            chunk = ColumnChunk(self._layout, series.num_rows)
            while series.num_rows:
                self._decoder.decode(series, chunk)
            return self._make(chunk)
        finally:
            self._is_asked = False

    def close(self) -> None:
        """Stop following. The connections stay open for a while, for the next reading."""
        self._follow.close()
        self._pages.close()
        self._source.clients.give_back(self._client)
        self._is_closed.set()

    def end(self) -> None:
        """End the reading from another thread, and wait until the iterating thread, if any, has closed it."""
        self._follow.close()
        deadline, is_idle = time.monotonic() + _END_S, False
        while not self._is_closed.wait(_IDLE_S) and not is_idle and time.monotonic() < deadline:
            is_idle = not self._is_asked


_under_way: WeakSet[FollowReader[Any]] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End all followed readings when the process ends.

    An ending process waits for TensorFlow's threads, and those that read ahead wait for rows.
    """
    readers = list(_under_way)
    for reader in readers:
        reader.end()
    if readers:
        time.sleep(_RETURN_S)
