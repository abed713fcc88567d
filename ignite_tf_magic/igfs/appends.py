"""Marks in a file's entry, which show whether an append without an answer was made. Pure.

Every append leaves a mark: the writer, and a number that grows with each of its publications. After an append without
an answer, or an error after which the change may have been made, the mark shows whether it was made. The entry keeps
the last mark of each of the last 16 writers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAX_MARKS = 16
_TAG = ord("A")
_HEAD = struct.Struct("<BB")
_MARK = struct.Struct("<QI")
_WRITER_MASK = (1 << 64) - 1


class AppendMark(NamedTuple):
    """The last publication of a writer that a file contains."""

    writer: int
    number: int


Marks = tuple[AppendMark, ...]


def mark_of(writer: int, number: int) -> AppendMark:
    """Return the mark of a writer's publication; it keeps the last 64 bits of the writer's id."""
    return AppendMark(writer & _WRITER_MASK, number)


def marked(marks: Marks, mark: AppendMark) -> Marks:
    """Return the marks after a publication: the newest is the last, the oldest makes room."""
    return (*(other for other in marks if other.writer != mark.writer), mark)[-MAX_MARKS:]


def holds(marks: Marks, mark: AppendMark) -> bool:
    """Return whether a publication was made: its writer has a mark of this or a later publication."""
    return any(other.writer == mark.writer and other.number >= mark.number for other in marks)


def may_be_forgotten(before: Marks, now: Marks) -> bool:
    """Return whether a mark added to `before` may have been pushed out since.

    An earlier version may also have dropped it. If a mark of `before` is still there, the added mark was not pushed
    out: the older mark would have been first.
    """
    if before and not now:
        return True
    return len(now) == MAX_MARKS and not set(before) & set(now)


def encode(marks: Marks) -> bytes:
    """Encode marks as a part of an entry; empty if there are none."""
    if not marks:
        return b""
    return _HEAD.pack(_TAG, len(marks)) + b"".join(_MARK.pack(*mark) for mark in marks)


def decode(part: bytes) -> Marks:
    """Decode that part of an entry; entries of earlier versions have none."""
    if len(part) < _HEAD.size or part[0] != _TAG:
        return ()
    _, count = _HEAD.unpack_from(part)
    return tuple(AppendMark(*fields) for fields in _MARK.iter_unpack(part[2 : 2 + count * _MARK.size]))
