"""Which pass over a dataset is the next one.

What is random in a pass depends on its number, so that a training that was interrupted goes on in the order in which it
had begun.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np


class Passes:
    """Numbers the passes over one source of rows. Thread-safe.

    Each part of a pipeline that depends on the number asks for it when a pass begins; all parts begin passes in step.
    """

    def __init__(self) -> None:
        self._first = self._skipped = 0
        self._begun: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, first: int, skipped_batches: int = 0) -> None:
        """Say which number the next pass has, and how many of its batches are left out."""
        with self._lock:
            self._first, self._skipped = first, skipped_batches
            self._begun.clear()

    def next_number(self, part: str) -> int:
        """Give the number of the pass that a part of the pipeline now begins."""
        with self._lock:
            self._begun[part] += 1
            return self._first + self._begun[part] - 1

    def next_skip(self, part: str) -> int:
        """Give how many batches a part of the pipeline leaves out of the pass that it now begins."""
        with self._lock:
            self._begun[part] += 1
            return self._skipped if self._begun[part] == 1 else 0


class PassSeed:
    """Draws a seed for each pass: always the same one for a seed and the number of the pass.

    Args:
        seed: Of all passes; None takes one that a run keeps through its restarts, and is new elsewhere.
        reshuffle: Whether passes differ.
        passes: Numbers them.
        part: The part of the pipeline that draws.
    """

    def __init__(self, seed: int | None, passes: Passes, part: str, *, reshuffle: bool = True) -> None:
        self._seed = _base_seed(os.environ) if seed is None else seed
        self._passes = passes
        self._part = part
        self._reshuffle = reshuffle

    def __call__(self) -> Any:
        """Give the seed of the pass that now begins, an int64 from 0 up."""
        number = self._passes.next_number(self._part) if self._reshuffle else 0
        state = np.random.SeedSequence([self._seed & 0xFFFFFFFF, number]).generate_state(1, np.uint64)
        return np.int64(state[0] >> 1)


def _base_seed(environment: Mapping[str, str]) -> int:
    run = environment.get("IGNITE_TF_RUN_ID")
    if run is None:
        return random.SystemRandom().getrandbits(32)
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")


def passes_of(dataset: Any) -> list[Passes]:
    """Find the sources that a tf.data dataset reads."""
    found: dict[int, Passes] = {}
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        passes = getattr(one, "passes", None)
        if isinstance(passes, Passes):
            found[id(passes)] = passes
        waiting += one._inputs()
    return list(found.values())
