"""A sweep: reads partitions that are one page each, one after another, with little work for each.

A small cache has 1,024 partitions of a few rows, and Python's work for one page takes longer than moving its
rows. A sweep encodes all requests at once. Compiled code cuts the received bytes into pages and puts them in
order, whatever the order of the answers. Pages stay in the receive buffer until they are used.

    sweep = Sweep(library, cache, expected, ...)
    while not sweep.is_done:
        transport.send(sweep.requests())
        sweep.received(transport.receive_into(sweep.space()))
        outcome = sweep.take()

A sweep uses no socket. Anything that does not fit, such as a partition that has grown, ends it. The general
reader, `client.owner_scan`, then continues from there. Both give the same rows; a test compares them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.connection import Fault, Notification, encode_request, parse_frame
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.page_series import PageEntry, PageSeries

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LENGTH = struct.Struct("<i")
_MIN_READ_BYTES = 64 * 1024
_MIN_BUFFER_BYTES = 512 * 1024
_RUN, _ODD, _GROWN = 1, -1, -2
UNREAD = -1  # a number of rows that no page has


@cache
def _request_dtype() -> np.dtype[Any]:
    return np.dtype(
        [
            ("length", "<i4"),
            ("operation", "<i2"),
            ("id", "<i8"),
            ("cache", "<i4"),
            ("flags", "i1"),
            ("filter", "i1"),
            ("page_rows", "<i4"),
            ("partition", "<i4"),
            ("local", "i1"),
        ]
    )


class _Slot(ctypes.Structure):
    _fields_ = [
        ("page", PageEntry),
        ("cursor", ctypes.c_int64),
        ("has_more", ctypes.c_int32),
        ("is_here", ctypes.c_int32),
    ]


class _CSweep(ctypes.Structure):
    _fields_ = [
        ("buffer", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("capacity", "parsed", "end", "first_id")),
        *((name, ctypes.c_int64) for name in ("num_partitions", "num_taken", "num_asked", "num_here")),
        *((name, ctypes.c_int64) for name in ("max_asked", "max_bytes")),
        *((name, ctypes.c_void_p) for name in ("rows", "bytes", "slots", "series")),
        *((name, ctypes.c_int64) for name in ("series_rows", "num_changed")),
    ]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected sizes of partitions that are one page each: int64 arrays with one item per partition.

    Attributes:
        rows: Number of rows when the partition was last read; UNREAD if it was not.
        num_bytes: Expected number of bytes.
        page_rows: Number of rows to request, at least `rows`.
    """

    partitions: NDArray[np.int64]
    rows: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    page_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SweptSeries:
    """The next pages in the order of the partitions.

    Attributes:
        first: Index of the first page's partition in `Expected.partitions`.
        series: The pages; valid until the next `Sweep.space`.
        as_expected: Whether each page has the expected number of rows and no more bytes than expected.
    """

    first: int
    series: PageSeries
    as_expected: bool


@dataclass(frozen=True, slots=True)
class Grown:
    """The next partition has grown to more than one page: the sweep cannot continue."""


class Sweep:
    """The state of a sweep; see the module's docstring for its use.

    Args:
        library: The compiled _rows.c, from `walk_compiled.library`.
        cache: Id of the cache.
        expected: The partitions to read, in this order.
        first_id: Request id of the first partition; the others have the ids after it.
        max_asked: Maximum number of pages that are requested and not yet taken.
        max_bytes: Maximum number of bytes expected of these pages, unless a single page is larger.
        buffer: Returns memory to receive into, of at least the requested size in bytes.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        cache: int,
        expected: Expected,
        first_id: int,
        max_asked: int,
        max_bytes: int,
        buffer: Callable[[int], bytearray],
    ) -> None:
        self._library = library
        self._expected = expected
        self._slots = (_Slot * max_asked)()
        self._series = (PageEntry * max_asked)()
        self._requests = _encode(cache, expected, first_id)
        self._get_buffer = buffer
        self._state = _CSweep(
            first_id=first_id,
            num_partitions=len(expected.partitions),
            max_asked=max_asked,
            max_bytes=max_bytes,
            rows=expected.rows.ctypes.data,
            bytes=expected.num_bytes.ctypes.data,
            slots=ctypes.addressof(self._slots),
            series=ctypes.addressof(self._series),
        )
        self._address = ctypes.addressof(self._state)
        under_way_bytes = min(max_bytes, max_asked * int(expected.num_bytes.max(initial=0)))
        self._use(buffer(max(_MIN_BUFFER_BYTES, under_way_bytes * 5 // 4)))

    def _use(self, buffer: bytearray) -> None:
        self._buffer, self._view = buffer, memoryview(buffer)
        self._state.buffer = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._state.capacity = len(buffer)

    @property
    def num_taken(self) -> int:
        """The number of partitions that `take` has returned."""
        return int(self._state.num_taken)

    @property
    def is_done(self) -> bool:
        """Whether `take` has returned all partitions."""
        return self.num_taken == len(self._expected.partitions)

    @property
    def is_idle(self) -> bool:
        """Whether `take` has returned every requested partition."""
        return bool(self._state.num_asked == self._state.num_taken)

    @property
    def is_quiet(self) -> bool:
        """Whether the answer to every request has arrived."""
        return bool(self._state.num_asked - self._state.num_taken == self._state.num_here)

    def requests(self) -> memoryview:
        """Return the bytes of the requests that may be sent now, and count them as sent."""
        first = self._state.num_asked
        number = self._library.itm_sweep_ask(self._address)
        return self._requests[
            first * _request_dtype().itemsize : (first + number) * _request_dtype().itemsize
        ]

    def space(self) -> memoryview:
        """Return free space to receive into; call `received` afterwards. Invalidates the series returned so far."""
        wanted = max(_MIN_READ_BYTES, self._missing_bytes())
        free = self._library.itm_sweep_room(self._address, wanted)
        if free < 0:
            self._grow(wanted)
        return self._view[self._state.end :]

    def _missing_bytes(self) -> int:
        """Return the number of bytes still missing from the answer being received."""
        parsed, end = self._state.parsed, self._state.end
        if end - parsed < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(self._buffer, parsed)
        return int(max(0, _LENGTH.size + length - (end - parsed)))

    def _grow(self, wanted: int) -> None:
        old, view = self._state.buffer, self._view
        grown = self._get_buffer(max(self._state.end + wanted, len(view) * 3 // 2))
        grown[: self._state.end] = view[: self._state.end]
        self._use(grown)
        for slot in self._slots:
            if slot.is_here:
                slot.page.rows = slot.page.rows - old + self._state.buffer

    def received(self, num_bytes: int) -> None:
        """Record the number of bytes that were written into the space."""
        self._state.end += num_bytes

    def take(self) -> SweptSeries | Grown | Fault | None:
        """Return the next pages in order, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: The peer does not speak this protocol.
        """
        first = self.num_taken
        outcome = self._library.itm_sweep_take(self._address)
        state = self._state
        if outcome == _RUN:
            series = PageSeries((), self._series, state.num_taken - first, state.series_rows)
            return SweptSeries(first, series, not state.num_changed)
        if outcome == _GROWN:
            return Grown()
        return self._take_odd() if outcome == _ODD else None

    def _take_odd(self) -> SweptSeries | Grown | Fault | None:
        state = self._state
        (length,) = _LENGTH.unpack_from(self._buffer, state.parsed)
        start = state.parsed + _LENGTH.size
        answer = parse_frame(self._view[start : start + max(0, length)])
        if isinstance(answer, Fault):
            return answer
        if isinstance(answer, Notification):
            state.parsed = start + length
            return self.take()
        raise RemoteProtocolError(f"an answer to request {answer.request_id} that is no page asked for")

    def open_cursors(self) -> list[int]:
        """Return the cursors of received pages that are not the last of their partition."""
        here = (self._slots[i % len(self._slots)] for i in range(self.num_taken, self._state.num_asked))
        return [slot.cursor for slot in here if slot.is_here and slot.has_more]


def _encode(cache: int, expected: Expected, first_id: int) -> memoryview:
    """Encode the requests of all partitions, one after another."""
    one = encode_request(0, messages.scan(cache, 0, 0))
    table = np.frombuffer(one, _request_dtype()).repeat(len(expected.partitions))
    table["id"] = np.arange(first_id, first_id + len(table))
    table["page_rows"] = expected.page_rows
    table["partition"] = expected.partitions
    return memoryview(table.tobytes())
