"""The meaning of fewer rows, given the current nodes and partitions and those of the last count."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.client.cache_facts import forget, read_facts, update_facts
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE, Baseline
from ignite_tf_magic.client.row_counts import (
    RowCount,
    counted_now,
    doubts,
    evidence_of_loss,
    last_count,
    note_count,
)
from ignite_tf_magic.protocol.messages import CacheConfig

A, B, C, NEW = (uuid.UUID(int=number) for number in (1, 2, 3, 4))
OWNERS = {partition: (A, B, C)[partition % 3] for partition in range(300)}
FULL = dict.fromkeys(range(300), 10)


def known(rows=3000, nodes=(A, B, C), filled=range(300), **changes):
    return RowCount(rows, frozenset(nodes), "a load", 0.0, (), frozenset(filled), **changes)


def baseline(*nodes, backups=0, owners=OWNERS):
    return Baseline("DATA", owners, frozenset(nodes), backups, 0)


def without(owner):
    return {partition: 0 if OWNERS[partition] == owner else 10 for partition in OWNERS}


def test_a_node_that_has_gone_with_its_rows():
    assert "had 3,000" in evidence_of_loss(known(), baseline(A, B), without(C))
    owners = {p: NEW if node == C else node for p, node in OWNERS.items()}
    assert "100 partitions" in evidence_of_loss(known(), baseline(A, B, NEW, owners=owners), without(C))


def test_a_node_that_has_gone_with_copies_only():
    assert evidence_of_loss(known(), baseline(A, B, backups=1), FULL) == ""
    # Backups covered the lost node, so the missing rows were removed.
    assert evidence_of_loss(known(), baseline(A, B, backups=1), without(C)) == ""
    assert evidence_of_loss(known(), baseline(A, backups=1), without(C)) != ""


def test_removed_rows_are_no_loss():
    thinner = dict.fromkeys(OWNERS, 9)
    assert evidence_of_loss(known(), baseline(A, B, NEW), thinner) == ""  # no partition is empty
    assert evidence_of_loss(known(), baseline(A, B, C), without(C)) == ""  # no node has left
    (told,) = doubts(known(), "DATA", thinner)
    assert "2,700 rows and had 3,000" in told


def test_a_replicated_cache_loses_nothing_as_long_as_one_of_its_nodes_is_there():
    whole = {WHOLE_CACHE: A}
    assert evidence_of_loss(known(filled=()), baseline(A, owners=whole), {WHOLE_CACHE: 2000}) == ""
    (told,) = doubts(known(filled=()), "DATA", {WHOLE_CACHE: 2000})
    assert "2,000 rows and had 3,000" in told


def test_what_nobody_has_counted():
    assert "no row in any of its 100 partitions" in evidence_of_loss(None, baseline(A, B, C), without(C))
    assert evidence_of_loss(None, baseline(A, B, C), FULL) == ""
    few = {partition: int(partition in (0, 1, 3)) for partition in OWNERS}
    assert evidence_of_loss(None, baseline(A, B, C), few) == ""  # three rows can easily miss a node


def test_partitions_that_are_empty_against_all_odds_are_told():
    (told,) = doubts(None, "DATA", {**dict.fromkeys(range(300), 20), **dict.fromkeys(range(0, 300, 3), 0)})
    assert "100 of its 300 partitions have none" in told
    assert doubts(None, "DATA", dict.fromkeys(range(300), 20)) == []
    assert doubts(None, "DATA", {p: int(p % 3 > 0) for p in range(300)}) == []  # too few rows


def test_a_loss_that_was_accepted_is_said():
    (told,) = doubts(known(2000, lost_from=3000), "DATA", without(C))
    assert "2,000 of the 3,000 rows" in told
    assert doubts(known(3000, lost_from=3000), "DATA", FULL) == []


@given(st.frozensets(st.integers(0, 1023)), st.integers(0, 10**12), st.integers(0, 10**12))
def test_nothing_is_refused_that_has_as_many_rows(filled, rows, more):
    count = known(rows, filled=filled)
    assert evidence_of_loss(count, baseline(NEW), {0: rows + more}) == ""
    assert doubts(count, "DATA", {0: rows + more}) == []


@pytest.fixture
def noted(client):
    client.create_cache(CacheConfig("ROW_COUNTS"))
    yield "ROW_COUNTS"
    client.destroy_cache("ROW_COUNTS")
    forget(client, "ROW_COUNTS")


def test_a_count_is_kept_beside_other_facts(client, noted):
    assert last_count(read_facts(client, noted)) is None
    count = counted_now("a start", 5, (A, B), ("10.0.0.1:10800",), (0, 7, 1023), 9)
    update_facts(client, noted, lambda facts: {**facts, "of others": 1})
    note_count(client, noted, count)
    facts = read_facts(client, noted)
    assert last_count(facts) == count
    assert facts["of others"] == 1
    later = counted_now("a load", 5, (A, B), ("10.0.0.1:10800",), (0, 7, 1023), 9)
    note_count(client, noted, later)  # the same count: the first source stays
    assert last_count(read_facts(client, noted)) == count
    update_facts(client, noted, lambda facts: {**facts, "counted": {"rows": "of a later version"}})
    assert last_count(read_facts(client, noted)) is None
