"""Gathers texts and arrays of varying length from many pages at once, by their memory addresses.

With small partitions, going page by page would cost as much as decoding the rows. Other values, and lists of anything
but texts, are read value by value (`columns`, `list_items`). Both ways give the same results.
"""

from __future__ import annotations

import ctypes
import io
import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, LeafRole
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.ops import TypeCode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Spans = NDArray[np.int64]

# Texts with a larger mean size are copied one by one: each is then copied only once.
_MAX_JOINED_BYTES = 4096
_MIN_TEXT_BYTES = 5  # in a list: a type code, and a length

Gather = Callable[["Spans"], Any]


def gather_of(leaf: Leaf, library: ctypes.CDLL) -> Gather | None:
    """Return a function that makes a part of a column from (address, bytes) pairs, address -1 for null.

    The function returns None if the part must be read value by value. `gather_of` itself returns None if every part
    must be.
    """
    if leaf.is_list:
        return partial(_lists, library) if is_of_texts(leaf) else None
    if leaf.as_text or leaf.is_decimal or leaf.code == TypeCode.UUID:
        return None
    fill = leaf.fill or b""
    return partial(_texts, library, fill) if leaf.is_text else partial(_arrays, library, fill, leaf.dtype)


def is_of_texts(leaf: Leaf) -> bool:
    """Return whether a column has lists of varying length that hold only texts."""
    is_plain = leaf.role is LeafRole.VALUE and leaf.length == VARIABLE and not leaf.member
    return is_plain and leaf.item is not None and leaf.item.item is None and leaf.item.code == TypeCode.STRING


def _texts(library: ctypes.CDLL, fill: bytes, spans: Spans) -> list[bytes]:
    lengths = _lengths(spans, fill)
    if lengths.sum() > _MAX_JOINED_BYTES * len(lengths):
        return [fill if at < 0 else ctypes.string_at(at, size) for at, size in spans.tolist()]
    joined = io.BytesIO(_joined(library, fill, spans, lengths).data)
    return list(map(joined.read, lengths.tolist()))


def _arrays(
    library: ctypes.CDLL, fill: bytes, dtype: np.dtype[Any], spans: Spans
) -> tuple[NDArray[np.uint8], list[NDArray[np.int64]]]:
    lengths = _lengths(spans, fill)
    return _joined(library, fill, spans, lengths), [lengths // dtype.itemsize]


def _lists(library: ctypes.CDLL, spans: Spans) -> tuple[NDArray[Any], list[NDArray[np.int64]]] | None:
    lengths = np.empty(len(spans), np.int64)
    items = np.empty((int(spans[:, 1].sum()) // _MIN_TEXT_BYTES, 2), np.int64)
    found = library.itm_texts(spans.ctypes.data, len(spans), items.ctypes.data, lengths.ctypes.data)
    if found < 0:
        return None
    texts = _texts(library, b"", items[:found])
    try:
        for text in itertools.filterfalse(bytes.isascii, texts):
            text.decode()
    except UnicodeDecodeError:
        return None
    column = np.empty(found, object)
    column[:] = texts
    return column, [lengths]


def _lengths(spans: Spans, fill: bytes) -> NDArray[np.int64]:
    return np.where(spans[:, 0] < 0, len(fill), spans[:, 1]) if fill else spans[:, 1]


def _joined(library: ctypes.CDLL, fill: bytes, spans: Spans, lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    out = np.empty(int(lengths.sum()), np.uint8)
    library.itm_join(spans.ctypes.data, len(spans), fill, len(fill), out.ctypes.data)
    return out
