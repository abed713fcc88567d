"""A simple model of `ChunkReader`: merges groups of rows, taking one chunk of each group in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any


def in_turn(groups: Sequence[Sequence[Any]], chunk_rows: int) -> list[Any]:
    eighth = max(1, chunk_rows // 8)
    first = list(dict.fromkeys([0, *(min(eighth * n, chunk_rows) for n in (1, 2, 4, 8))]))
    chunks = []
    for rows in groups:
        ends = [*first[1:], *range(first[-1] + chunk_rows, len(rows) + chunk_rows, chunk_rows)]
        chunks.append([rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)])
    return [row for turn in zip_longest(*chunks, fillvalue=[]) for chunk in turn for row in chunk]
