"""Rows shuffled while they are read, in blocks; each row stays whole, and no row differs from TensorFlow's shuffle."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.dataset import permuting
from ignite_tf_magic.dataset.permuting import can_permute, permuted, rows_of_block
from ignite_tf_magic.dataset.pool import BufferPool
from ignite_tf_magic.protocol import walk_compiled
from ignite_tf_magic.protocol.columns import ColumnChunk
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.typed_values import Int
from tests.dataset.test_ignite_dataset import all_rows, assert_same_rows
from tests.protocol.pages import make_pages

LAYOUT = make_pages(
    [(n, BinaryObject("Mixed", {"pair": np.zeros(3, np.uint8), "x": Int(n), "name": "n"})) for n in range(2)]
).layout()


def chunks_of(sizes):
    """Yield chunks of numbered rows; each column contains the row's number."""
    first = 0
    for size in sizes:
        chunk = ColumnChunk(LAYOUT, max(size, 1))
        numbers = np.arange(first, first + size)
        for column, buffer in enumerate(chunk.fixed):
            if buffer is not None:
                buffer[:size] = numbers.reshape(-1, *[1] * (buffer.ndim - 1)) % 251
            else:
                chunk.parts[column].append([b"%d" % number for number in numbers])
        chunk.num_rows = size
        first += size
        yield chunk


def blocks_of(sizes, block_rows, seed=5):
    return list(permuted(chunks_of(sizes), block_rows, np.random.default_rng(seed), BufferPool()))


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 60), st.booleans())
@settings(deadline=None)
def test_blocks_have_consecutive_rows_in_an_order_that_sizes_of_chunks_do_not_change(
    sizes, block_rows, compiled
):
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(walk_compiled, "library", lambda: None)
        blocks = blocks_of(sizes, block_rows)
        again = blocks_of([1] * sum(sizes), block_rows)
    assert [len(block[0]) for block in blocks] == [
        min(block_rows, sum(sizes) - first) for first in range(0, sum(sizes), block_rows)
    ]
    for number, (block, other) in enumerate(zip(blocks, again, strict=True)):
        key, pair, x, name = block
        rows = np.array([int(text) for text in name])
        assert sorted(rows) == list(range(number * block_rows, number * block_rows + len(rows)))
        for column in (key, x, *pair.T):
            assert (column == rows % 251).all()
        for mine, theirs in zip(block, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_each_order_of_a_block_is_as_likely():
    counts = np.zeros((4, 4), int)
    for seed in range(2000):
        [[_, _, x, _]] = blocks_of([4], 4, seed)
        counts[x, np.arange(4)] += 1
    assert abs(counts - 500).max() < 5 * np.sqrt(2000 * 3 / 16), counts


def test_what_is_ragged_is_left_to_tensorflow():
    rows = [(n, BinaryObject("Ragged", {"x": np.zeros(n, np.float32)})) for n in range(3)]
    assert can_permute(LAYOUT) and not can_permute(make_pages(rows).layout()) and not can_permute(None)


def test_blocks_are_never_smaller_than_was_asked_for():
    assert [rows_of_block(rows) for rows in (1, 700, 4096, 10_000)] == [1, 700, 4096, 10_240]


def test_pure_functions_and_the_order_of_rows_can_be_exchanged(digits, monkeypatch):
    taken = []
    monkeypatch.setattr(
        "ignite_tf_magic.dataset.generated_pages.permuted",
        lambda *given: taken.append(given[1]) or permuting.permuted(*given),
    )
    dataset = IgniteDataset(digits.name, **digits.where())
    count = tf.Variable(0, dtype=tf.int64)

    def same(rows):
        taken.clear()
        assert_same_rows(all_rows(rows.batch(100)), digits)
        return list(taken)

    assert same(dataset.shuffle(300)) == [300]
    assert same(dataset.map(lambda row: row).shuffle(300)) == [300]
    # Functions that draw random numbers or read state must see the rows in the original order.
    assert same(dataset.map(lambda row: {**row, "drawn": tf.random.uniform([])}).shuffle(300)) == []
    assert same(dataset.map(lambda row: {**row, "n": count.read_value()}).shuffle(300)) == []
    assert same(dataset.shuffle(300).shuffle(20)) == [300]
    assert same(dataset.prefetch(1).shuffle(300)) == []
    assert same(dataset.shuffle(tf.constant(300))) == [300]


def test_rows_stay_whole_by_either_way(digits):
    pixels = dict(zip(digits.keys.tolist(), digits.columns["pixels"].tolist(), strict=True))
    dataset = IgniteDataset(digits.name, **digits.where())
    for rows in (dataset.shuffle(1000), dataset.prefetch(1).shuffle(1000)):
        for batch in rows.batch(512).take(3).as_numpy_iterator():
            assert [pixels[key] for key in batch["key"].tolist()] == batch["val"]["pixels"].tolist()
