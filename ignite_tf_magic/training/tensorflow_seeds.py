"""TensorFlow's random numbers in a run: see `seeding`.

An operation without a seed takes one that follows from the global seed and from how many came before it. Both are of
TensorFlow's context, which has no public way to keep and restore them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import global_seed, seed_generator
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
        tf.random.set_seed(mixed(seed, group.place.index))
    yield
    (state,) = group.from_chief([np.array(seed_generator().getstate()[1], np.int64)])
    _go_on(seed, state.numpy().tolist())


@contextmanager
def own_numbers(index: int) -> Iterator[None]:
    """Yield operations that are made in a block numbers of this worker's own; no other worker has to do with it."""
    seed = global_seed()
    if seed is None:
        yield
        return
    state = seed_generator().getstate()[1]
    tf.random.set_seed(mixed(seed, "own", index))
    try:
        yield
    finally:
        _go_on(seed, state)


def _go_on(seed: int, state: Any) -> None:
    tf.random.set_seed(seed)
    version, _, rest = seed_generator().getstate()
    seed_generator().setstate((version, tuple(state), rest))
