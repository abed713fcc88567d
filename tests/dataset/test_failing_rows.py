"""If a mapped function fails for a row, the results equal those of tf.data's map, which works row by row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.dataset.ignite import IgniteDataset
from ignite_tf_magic.dataset.page_map import can_fail

NUM_ROWS = 700


@pytest.fixture(scope="module")
def numbers(ignite, fill_cache):
    random = np.random.default_rng(5)
    columns = {"x": random.integers(0, 7, NUM_ROWS).astype(np.int32), "y": random.normal(size=(NUM_ROWS, 3))}
    return fill_cache(ignite, "FAILING_ROWS", columns)


def checked(row):
    """Fail for rows with one value in seven."""
    return row["key"], tf.debugging.check_numerics(1.0 / tf.cast(row["val"]["x"], tf.float64), "x is zero")


def rarely(row):
    """Fail for one row in 97: never in some pages, once in others."""
    return row["key"], tf.debugging.check_numerics(
        1.0 / tf.cast(row["key"] % 97, tf.float64), "divided by zero"
    )


def divided(row):
    return 10 // row["val"]["x"] + tf.cast(row["key"], tf.int32)


def picked(row):
    return {"key": row["key"], "of": tf.gather(tf.constant([1, 2, 3, 4, 5]), row["val"]["x"])}


def both(numbers, build):
    """Build on the dataset twice: mapped over pages, and mapped over rows."""
    dataset = IgniteDataset(numbers.name, **numbers.where())
    return build(dataset, True), build(dataset, False)


def drained(dataset):
    """Take all elements, with errors at their positions."""
    found, iterator = [], iter(dataset)
    while True:
        try:
            found.append(tf.nest.map_structure(lambda part: part.numpy().tolist(), next(iterator)))
        except StopIteration:
            return found
        except tf.errors.InvalidArgumentError as error:
            found.append(type(error).__name__)


@pytest.mark.parametrize("function", [checked, divided, picked])
def test_ignored_errors_cost_their_rows_only(numbers, function):
    fast, slow = both(numbers, lambda dataset, vectorize: dataset.map(function, vectorize=vectorize))
    found = drained(fast.ignore_errors())
    assert found == drained(slow.ignore_errors())
    assert NUM_ROWS // 2 < len(found) < NUM_ROWS


@pytest.mark.parametrize("function", [checked, divided, picked])
def test_errors_come_where_tf_data_has_them(numbers, function):
    fast, slow = both(
        numbers, lambda dataset, vectorize: dataset.map(function, vectorize=vectorize).take(600)
    )
    assert fast.element_spec == slow.element_spec
    assert drained(fast) == drained(slow)


def test_the_error_is_the_rows_own(numbers):
    for dataset in both(numbers, lambda dataset, vectorize: dataset.map(picked, vectorize=vectorize)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"indices = [56] is not in \[0, 5\)"
        ):  # the message must not say indices[n]
            list(dataset)


@pytest.mark.parametrize(
    "build",
    [
        lambda d, v: d.map(checked, vectorize=v).ignore_errors().batch(64),
        lambda d, v: d.shuffle(50, seed=3).map(rarely, vectorize=v),
        lambda d, v: d.map(checked, tf.data.AUTOTUNE, vectorize=v).ignore_errors(),
        lambda d, v: (
            d.map(divided, vectorize=v)
            .map(lambda n: 100 // (n - 12), **({"vectorize": v} if v else {}))
            .ignore_errors()
        ),
        lambda d, v: d.map(checked, 4, vectorize=v).repeat(2).ignore_errors(),
        lambda d, v: (
            d.map(lambda r: (r["key"], r["val"]["x"]), vectorize=v)
            .map(lambda k, x: (k, 5 // x))
            .ignore_errors()
        ),
    ],
)
def test_what_follows_sees_the_same(numbers, build):
    fast, slow = both(numbers, build)
    assert drained(fast) == drained(slow)


def test_batches_of_failing_rows_lose_no_more_than_tf_datas(numbers):
    """A failing row discards the rows gathered for its batch: all of them in tf.data, here only some."""
    fast, slow = both(numbers, lambda d, v: d.map(checked, vectorize=v).batch(8).ignore_errors())
    good = [
        key for key, _ in drained(both(numbers, lambda d, v: d.map(checked, vectorize=v).ignore_errors())[0])
    ]
    ours, theirs = ([key for keys, _ in drained(dataset) for key in keys] for dataset in (fast, slow))
    assert set(ours) <= set(good)
    assert len(theirs) <= len(ours) == len(set(ours))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda r: (tf.cast(r["x"], tf.float32) / 255.0, tf.one_hot(r["n"], 10)), False),
        (
            lambda r: tf.image.per_image_standardization(tf.cast(tf.reshape(r["x"], (2, 2, 1)), tf.float32)),
            False,
        ),
        (lambda r: tf.where(r["n"] > 3, r["x"][:2], 0), False),
        (lambda r: r["f"] // 2.0, False),
        (lambda r: r["n"] // 2, True),
        (lambda r: r["x"][r["n"]], True),
        (lambda r: tf.reshape(r["x"], [r["n"], 2]), True),
        (lambda r: tf.strings.to_number(r["s"]), True),
        (lambda r: tf.ensure_shape(r["x"], [4]), True),
    ],
)
def test_what_can_fail_is_told_by_its_operations(function, expected):
    spec = {
        "x": tf.TensorSpec([4], tf.uint8),
        "n": tf.TensorSpec([], tf.int32),
        "f": tf.TensorSpec([], tf.float32),
        "s": tf.TensorSpec([], tf.string),
    }
    assert can_fail(function, spec) is expected
