"""The names in a directory: a tree of rows that behaves like a set."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import CorruptRecord
from ignite_tf_magic.igfs import names
from ignite_tf_magic.igfs.names import Branch, NameLeaf

SOME = [f"n{number}" for number in range(60)] + ["é", "a b", "x" * 500]


@pytest.fixture(params=[1, 4], ids=["leaves of 1", "leaves of 4"])
def small_leaves(request, monkeypatch):
    monkeypatch.setattr(names, "MAX_LEAF_NAMES", request.param)


class Rows:
    """A directory's rows in encoded form."""

    def __init__(self):
        self.rows = {}

    def nodes(self, name):
        """Return the nodes on the path to a name. A change may need no others."""
        found = {}
        for depth in range(names.MAX_DEPTH + 1):
            place = names.route(name, depth)[-1]
            if place not in self.rows:
                break
            found[place] = names.decode(self.rows[place])
            if isinstance(found[place], NameLeaf):
                break
        return found

    def change(self, changes):
        for place, node in changes.items():
            if node is None:
                del self.rows[place]
            else:
                self.rows[place] = names.encode(node)

    def listed(self):
        found, places = [], [""] if "" in self.rows else []
        for place in places:
            node = names.decode(self.rows[place])
            if isinstance(node, NameLeaf):
                found += node.names
            else:
                places += [names.child(place, digit) for digit in node.digits()]
        assert sorted(places) == sorted(self.rows), "rows that nothing leads to"
        return found


@pytest.mark.usefixtures("small_leaves")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(SOME)), max_size=150))
def test_names_are_a_set(steps):
    rows, model = Rows(), set()
    for is_added, name in steps:
        changes = (names.add if is_added else names.remove)(rows.nodes(name), name)
        assert bool(changes) == (is_added != (name in model))
        rows.change(changes)
        (model.add if is_added else model.discard)(name)
        assert ("" in rows.rows) == bool(model), "the root's row alone tells whether there are names"
        assert sorted(rows.listed()) == sorted(model)


@pytest.mark.nightly
def test_a_large_directory_is_divided_and_shrinks_to_nothing():
    """Nightly. Shorter: test_names_are_a_set"""
    rows = Rows()
    many = [f"events.{number:06d}" for number in range(40_000)]
    for name in many:
        rows.change(names.add(rows.nodes(name), name))
    assert sorted(rows.listed()) == many
    assert all(len(row) <= names.MAX_LEAF_BYTES * 2 for row in rows.rows.values())
    assert max(map(len, rows.rows)) == 2
    for name in many:
        rows.change(names.remove(rows.nodes(name), name))
    assert rows.rows == {}


def test_long_names_divide_a_leaf_by_their_bytes():
    rows = Rows()
    long = [f"{number:04d}" + "x" * 3900 for number in range(40)]
    for name in long:
        rows.change(names.add(rows.nodes(name), name))
    assert isinstance(names.decode(rows.rows[""]), Branch)
    assert sorted(rows.listed()) == long


def test_names_whose_hashes_agree_share_one_leaf(monkeypatch):
    monkeypatch.setattr(names, "MAX_LEAF_NAMES", 2)
    monkeypatch.setattr(names, "digit_of", lambda name, depth: 5)
    rows = Rows()
    for number in range(20):
        rows.change(names.add(rows.nodes(str(number)), str(number)))
    assert sorted(rows.listed(), key=int) == [str(number) for number in range(20)]
    assert max(map(len, rows.rows)) == names.MAX_DEPTH
    for number in range(20):
        rows.change(names.remove(rows.nodes(str(number)), str(number)))
    assert rows.rows == {}


@pytest.mark.parametrize("record", [b"", b"X", b"B123", b"B123456789"])
def test_a_damaged_row_is_told(record):
    with pytest.raises(CorruptRecord):
        names.decode(record)


def test_a_row_under_no_branch_is_told():
    place = names.child("", names.digit_of("a", 0))
    with pytest.raises(CorruptRecord, match="fsck"):
        names._branch({place: NameLeaf(("a",))}, place[:-1])
