"""The global batch plan: which rows of each worker form a global batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.dataset.deal import EqualSteps, GlobalBatchPlan

spreads = st.lists(st.integers(0, 400), min_size=1, max_size=7).map(tuple)


def dealt(deal: GlobalBatchPlan) -> np.ndarray:
    """Return the number of rows by step and worker."""
    return np.stack([deal.sizes(worker) for worker in range(len(deal.rows_by_worker))], axis=1)


@given(spreads, st.integers(7, 300))
def test_every_row_once_in_full_batches(rows, batch):
    found = dealt(GlobalBatchPlan(rows, batch))
    assert (found >= 0).all()
    assert found.sum(axis=0).tolist() == list(rows)
    assert (found.sum(axis=1)[:-1] == batch).all()


@given(spreads, st.integers(7, 300))
def test_each_brings_its_share_of_each_batch(rows, batch):
    total = sum(rows)
    brought = dealt(GlobalBatchPlan(rows, batch)).cumsum(axis=0)
    ends = np.minimum(batch * np.arange(1, len(brought) + 1), total)
    shares = np.outer(ends, rows) / max(total, 1)
    assert (abs(brought - shares) < len(rows)).all()


@given(spreads, st.integers(7, 300))
def test_drop_leaves_the_rest_out(rows, batch):
    found = dealt(GlobalBatchPlan(rows, batch, EqualSteps.DROP))
    assert len(found) == sum(rows) // batch
    assert (found.sum(axis=1) == batch).all()
    assert (found.sum(axis=0) <= rows).all()
    assert (found == dealt(GlobalBatchPlan(rows, batch))[: len(found)]).all()


@given(spreads, st.integers(7, 300))
def test_repeat_fills_the_last_batch(rows, batch):
    found = dealt(GlobalBatchPlan(rows, batch, EqualSteps.REPEAT))
    assert len(found) == -(-sum(rows) // batch)
    assert (found.sum(axis=1) == batch).all()
    assert (found.sum(axis=0) >= rows).all()
    assert (found[:, np.array(rows) == 0] == 0).all()


@pytest.mark.parametrize(
    ("rows", "batch", "first"),
    [
        ((1000, 100), 110, [100, 10]),
        ((1000, 0), 64, [64, 0]),
        ((100, 99), 50, [25, 25]),
        ((5, 5, 5), 3, [1, 1, 1]),
    ],
)
def test_examples(rows, batch, first):
    assert dealt(GlobalBatchPlan(rows, batch))[0].tolist() == first


def test_a_batch_may_have_fewer_rows_than_there_are_workers():
    sizes = dealt(GlobalBatchPlan((10, 10, 10, 10), 3))
    assert sizes.sum(axis=1).tolist() == [3] * 13 + [1]
    assert sizes.sum(axis=0).tolist() == [10] * 4


def test_no_rows_at_all():
    assert GlobalBatchPlan((0, 0), 8).num_steps == 0
    assert dealt(GlobalBatchPlan((0, 0), 8)).shape == (0, 2)
