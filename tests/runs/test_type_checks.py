"""Checks of foreign JSON against annotations: checking many values at once must equal checking each alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.runs.type_checks import _check_of, _check_of_all

NUMBERS = st.one_of(
    st.integers(-(2**64), 2**64), st.sampled_from([2**63, 2**63 - 1, 1 - 2**63, -(2**63), True])
)
SINGLE = st.one_of(NUMBERS, st.text(max_size=3), st.just("\ud800"), st.none(), st.floats())
PAIRS = st.one_of(
    st.tuples(NUMBERS, NUMBERS), st.tuples(st.text(max_size=2), NUMBERS), st.tuples(NUMBERS), SINGLE
)


@pytest.mark.parametrize(
    ("hint", "values"),
    [(int, SINGLE), (str, SINGLE), (str, st.text(max_size=3)), (int, NUMBERS), (tuple[int, int], PAIRS)],
)
def test_many_at_once_are_judged_as_one_by_one(hint, values):
    @given(st.lists(values, max_size=5))
    def compare(found):
        assert _check_of_all(hint)(found) == all(map(_check_of(hint), found))

    compare()


def test_what_a_run_of_many_partitions_has_is_accepted():
    sizes = {str(number): (number, 100) for number in range(1024)}
    fits = _check_of(dict[str, tuple[int, int]])
    assert fits(sizes)
    assert not fits({**sizes, "7": (1, 2**63)})
    assert not fits({**sizes, "7": (1, "2")})
    assert not fits({**sizes, "7": (1, 2, 3)})
    assert not fits({**sizes, 7: (1, 2)})
