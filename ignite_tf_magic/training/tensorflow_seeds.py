"""TensorFlow's random numbers in a run: see `seeding`.

An operation without a seed takes one that follows from the global seed and from how many came before it. Both are of
TensorFlow's context, which has no public way to keep and restore them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import draw_seeds, global_seed, seed_state
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.seeding import mixed, run_seed


def seed_tensorflow() -> None:
    """Seed TensorFlow's random numbers, before the script can; outside of runs do nothing."""
    seed = run_seed("tensorflow")
    if seed is not None:
        tf.random.set_seed(seed)


def order_seed(group: WorkerGroup, *parts: object) -> int:
    """Return a number that follows from the script's global seed, or from the run, and from some parts.

    It is that of the chief on every worker; all of them call.
    """
    seed = mixed(global_seed(), *parts)
    (of_chief,) = group.from_chief([np.int64(seed)])
    return int(of_chief)


@contextmanager
def other_numbers(group: WorkerGroup) -> Iterator[None]:
    """Yield operations that are made in a block other numbers on each worker but the chief.

    Afterwards all workers go on where the chief is; all of them come to the end of the block, or none does.
    """
    seed = global_seed()
    if seed is None or group.place.size == 1:
        yield
        return
    if not group.place.is_chief:
        _draw_others(seed, group.place.index)
    yield
    version, own, rest = seed_state()
    (of_chief,) = group.from_chief([np.array(own, np.int64)])
    draw_seeds(seed, (version, tuple(of_chief.numpy().tolist()), rest))


@contextmanager
def own_numbers(index: int) -> Iterator[None]:
    """Yield operations that are made in a block numbers of this worker's own; no other worker has to do with it."""
    seed = global_seed()
    if seed is None:
        yield
        return
    state = seed_state()
    _draw_others(seed, "own", index)
    try:
        yield
    finally:
        draw_seeds(seed, state)


def _draw_others(seed: int, *parts: object) -> None:
    other = mixed(seed, seed_state(), *parts)
    draw_seeds(other, random.Random(other).getstate())  # noqa: S311 - as TensorFlow's
