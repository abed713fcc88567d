"""Seeds TensorFlow's random numbers in a run; `seeding` explains the rules.

An operation without a seed gets one that depends on the global seed and on the number of operations before it. Both are
part of TensorFlow's context, which has no public way to save and restore them.
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
    """Seed TensorFlow's random numbers before the script runs. Outside of runs, do nothing."""
    seed = run_seed("tensorflow")
    if seed is not None:
        tf.random.set_seed(seed)


def order_seed(group: WorkerGroup, *parts: object) -> int:
    """Return a seed derived from the global seed of the script or the run, and from the parts.

    All workers must call it, and get the chief's number.
    """
    seed = mixed(global_seed(), *parts)
    (of_chief,) = group.from_chief([np.int64(seed)])
    return int(of_chief)


@contextmanager
def other_numbers(group: WorkerGroup) -> Iterator[None]:
    """Give operations created in a block other seeds on each worker than on the chief.

    Afterwards all workers continue with the chief's state. Either all of them reach the end of the block, or none does.
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
    """Give operations created in a block this worker's own seeds, without any exchange with other workers."""
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
    draw_seeds(other, random.Random(other).getstate())  # noqa: S311 - like TensorFlow's own
