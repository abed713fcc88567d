"""The script's seed determines the order in which `fit` reads arrays; each epoch and `fit` has a different one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import global_seed
from ignite_tf_magic.training.fit_data import training_data
from ignite_tf_magic.training.frameworks import framework_named
from ignite_tf_magic.training.group import worker_group
from ignite_tf_magic.training.tensorflow_seeds import order_seed


@pytest.fixture(autouse=True)
def seed_of_others() -> Iterator[None]:
    before = global_seed()
    yield
    tf.random.set_seed(before)


def epochs_of(fit: str, *, seed: int, shuffle: bool = True) -> list[list[int]]:
    """Return the rows of two epochs of a `fit` in reading order."""
    tf.random.set_seed(seed)
    group = worker_group()
    given = {"x": np.arange(100), "y": np.arange(100), "batch_size": 8, "shuffle": shuffle}
    data, _ = training_data(given, framework_named("keras"), group, order_seed(group, fit))
    return [[int(row) for rows, _ in data["x"] for row in rows] for _ in range(2)]


def test_a_seeded_script_reads_in_the_same_order_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGNITE_TF_RUN_ID", "one")
    first = epochs_of("fit-0", seed=3)
    monkeypatch.setenv("IGNITE_TF_RUN_ID", "other")
    assert epochs_of("fit-0", seed=3) == first
    assert epochs_of("fit-0", seed=4) != first


def test_each_epoch_and_each_fit_has_an_order_of_its_own_and_every_row_once() -> None:
    orders = [*epochs_of("fit-0", seed=3), *epochs_of("fit-1", seed=3)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(100)) for order in orders)


def test_batches_of_one_worker_have_a_known_shape_where_those_of_keras_have() -> None:
    for rows, shape in ((20, 20), (30, None)):
        data, _ = training_data(
            {"x": np.zeros((100, 3)), "batch_size": rows}, framework_named("keras"), worker_group(), 0
        )
        assert data["x"].element_spec.shape.as_list() == [shape, 3]


def test_what_is_not_shuffled_stays_as_it_is() -> None:
    assert epochs_of("fit-0", seed=3, shuffle=False) == [list(range(100))] * 2
