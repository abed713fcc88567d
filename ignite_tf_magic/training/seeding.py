"""Seeds random numbers in a run: the same on all workers and after a restart, but different in each run.

So a script that shuffles or splits its data without a seed does the same on each worker. While a step is traced, the
workers' numbers differ, so that each worker's rows get their own noise. This module imports NumPy only if NumPy has
been imported already.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ignite_tf_magic.training.task import place_of, task

_SEEDS = 2**32


def run_seed(*parts: object) -> int | None:
    """Return a seed from 0 to 2**32 - 1 derived from the run and the parts, or None outside of runs."""
    run = os.environ.get("IGNITE_TF_RUN_ID")
    return None if run is None else mixed(run, *parts)


def seed_random() -> None:
    """Seed Python's random numbers before the script runs."""
    if not is_spawned():
        random.seed(run_seed("random"))


def seed_numpy() -> None:
    """Seed the legacy random numbers of NumPy, which has just been imported."""
    import numpy as np

    if not is_spawned():
        np.random.seed(run_seed("numpy"))


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Give Python and NumPy other random numbers on each worker in a block."""
    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()
    index = place_of(task()).index
    random.seed(mixed(random.random(), index))  # noqa: S311 - the generator that scripts use
    np.random.seed(mixed(np.random.random(), index))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def is_spawned() -> bool:
    """Return whether multiprocessing has started this process other than by a fork.

    With equal seeds, all such child processes would do the same.
    """
    return any("multiprocessing" in argument for argument in sys.orig_argv)


def mixed(*parts: object) -> int:
    """Return a number from 0 to 2**32 - 1 derived from the parts."""
    text = "\0".join(map(repr, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % _SEEDS
