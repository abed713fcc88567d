"""Parses partition numbers and ranges as people and launchers write them."""

from __future__ import annotations

from collections.abc import Iterable

from ignite_tf_magic.errors import ConfigError


def parse_partitions(part: int | str | Iterable[int] | None) -> tuple[int, ...] | None:
    """Parse partitions given as a number, numbers, or ranges such as "0-127,200".

    None and -1 mean all; "none" means no partition, which a launcher may assign.

    Raises:
        ConfigError: Not a partition, a range that ends before it starts, or a negative number.
    """
    if part is None or part == -1 or part == "-1":
        return None
    if part == "none":
        return ()
    if isinstance(part, int):
        numbers = [part]
    elif isinstance(part, str):
        numbers = [number for piece in part.split(",") if piece.strip() for number in _range(piece.strip())]
    else:
        numbers = [int(number) for number in part]
    if any(number < 0 for number in numbers):
        raise ConfigError(f"part={part!r}: partitions are numbered from 0; -1 means all")
    return tuple(dict.fromkeys(numbers))


def _range(piece: str) -> range:
    first, dash, last = piece.partition("-")
    try:
        start, end = int(first), int(last if dash else first)
    except ValueError:
        start, end = 1, 0
    if end < start:
        raise ConfigError(
            f"part: {piece!r} is not a partition or a range; write numbers and ranges as in 0-127,200"
        )
    return range(start, end + 1)
