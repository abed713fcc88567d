"""Marks of the last appends in a file's entry, by which a lost answer is cleared up. Pure.

Whoever appends leaves a mark: the writer, and a number that grows with each of its publications. When no answer came,
or an error after which the change may have been made, the mark says whether it was. Of each of the last 16 writers the
last mark is kept.
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
    """The last publication of a writer that a file holds."""

    writer: int
    number: int


Marks = tuple[AppendMark, ...]


def mark_of(writer: int, number: int) -> AppendMark:
    """Return the mark of a writer's publication; of the writer's id, the last 64 bits."""
    return AppendMark(writer & _WRITER_MASK, number)


def marked(marks: Marks, mark: AppendMark) -> Marks:
    """Return the marks after a publication: the newest is the last, the oldest makes room."""
    return (*(other for other in marks if other.writer != mark.writer), mark)[-MAX_MARKS:]


def holds(marks: Marks, mark: AppendMark) -> bool:
    """Whether a publication was made, by a writer that made it or a later one."""
    return any(other.writer == mark.writer and other.number >= mark.number for other in marks)


def may_be_forgotten(before: Marks, now: Marks) -> bool:
    """Whether a mark that was added to `before` may have made room since, or been dropped by an earlier version.

    A mark that was there before, and still is, would have made room first.
    """
    if before and not now:
        return True
    return len(now) == MAX_MARKS and not set(before) & set(now)


def encode(marks: Marks) -> bytes:
    """Write marks as a part of an entry; nothing when there are none."""
    if not marks:
        return b""
    return _HEAD.pack(_TAG, len(marks)) + b"".join(_MARK.pack(*mark) for mark in marks)


def decode(part: bytes) -> Marks:
    """Read that part of an entry; entries of earlier versions have none."""
    if len(part) < _HEAD.size or part[0] != _TAG:
        return ()
    _, count = _HEAD.unpack_from(part)
    return tuple(AppendMark(*fields) for fields in _MARK.iter_unpack(part[2 : 2 + count * _MARK.size]))
