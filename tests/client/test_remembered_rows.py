"""Received rows are remembered in runs exactly as a dictionary would remember them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.client import remembered_rows
from ignite_tf_magic.client.remembered_rows import GONE, RememberedRows, hashes_of_rows

BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(GONE, 3)), max_size=12), max_size=30)


def take(remembered, batch):
    keys = np.array([key for key, _ in batch], np.uint64)
    return remembered.take(keys, np.array([row for _, row in batch], np.uint64))


@given(BATCHES)
def test_as_a_dictionary(batches):
    known, remembered = {}, RememberedRows(1000)
    before, remembered_rows._RECENT_ROWS = remembered_rows._RECENT_ROWS, 4
    try:
        for batch in batches:
            news = []
            for number, (key, row) in enumerate(batch):
                if row != known.get(key, GONE) and row != GONE:
                    news.append(number)
                known[key] = row
            assert take(remembered, batch) == news
    finally:
        remembered_rows._RECENT_ROWS = before
    assert not remembered.has_forgotten


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(remembered_rows, "_RECENT_ROWS", 10)
    remembered = RememberedRows(100)
    for key in range(200):
        assert take(remembered, [(key, 1)]) == [0]
        assert len(remembered) <= 111
    assert remembered.has_forgotten
    assert take(remembered, [(199, 1), (0, 1)]) == [1]


def test_rows_are_hashed_one_by_one():
    rows = memoryview(b"abcabcabd")
    first, second, third = hashes_of_rows(rows, np.array([0, 3, 6, 9], np.int64)).tolist()
    assert first == second != third
    assert len(hashes_of_rows(memoryview(b""), np.array([0], np.int64))) == 0
