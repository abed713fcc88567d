"""The simple way of what `ChunkReader` does: groups of rows as one sequence, a chunk of each in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any


def in_turn(groups: Sequence[Sequence[Any]], chunk_rows: int) -> list[Any]:
    chunks = [[rows[at : at + chunk_rows] for at in range(0, len(rows), chunk_rows)] for rows in groups]
    return [row for turn in zip_longest(*chunks, fillvalue=[]) for chunk in turn for row in chunk]
