"""Partitions read by a SQL statement: one row sequence for any owners, and each row once if a node is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.client.owner_query import PIECE_PARTITIONS, Pieces, RowQuery
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.router import Router
from ignite_tf_magic.errors import IgniteTfError, ServerError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.objects import skip_value
from ignite_tf_magic.protocol.ops import Feature
from ignite_tf_magic.protocol.read_values import read_value
from tests.client.test_faults import kill

ROWS = 6_000
WHOLE = RowQuery("SELECT _KEY, _VAL FROM {name}")
ONE = RowQuery("SELECT _KEY, X FROM {name}", num_columns=2, row_bytes=18)
TWO = RowQuery("SELECT _KEY, X, X FROM {name}", num_columns=3, row_bytes=27)


def filled(client, name, backups=0):
    encoder = RowEncoder(name, {"X": np.arange(ROWS, dtype=np.int32) * 3}, np.arange(ROWS))
    cache = client.create_cache(table_config(name, encoder, backups))
    put_rows(cache, encoder)
    return cache


def named(query, name, where=""):
    return RowQuery(
        query.statement.format(name=f'"{name}"') + where, query.args, query.num_columns, query.row_bytes
    )


@pytest.fixture
def cache(client):
    made = filled(client, "QUERIED")
    yield made
    client.destroy_cache("QUERIED")


def keys_of(scan, num_values=1):
    found = []
    for series in scan.series():
        for page in series.pages():
            reader = Reader(page.page.rows)
            for _ in range(page.page.num_rows):
                found.append(read_value(reader))
                for _ in range(num_values):
                    skip_value(reader)
    return found


def by_pieces(partitions, rows_of):
    """Return the rows in the expected order: piece by piece, sorted by key within each."""
    groups = [partitions[at : at + PIECE_PARTITIONS] for at in range(0, len(partitions), PIECE_PARTITIONS)]
    return [key for group in groups for key in sorted(rows_of(group))]


@pytest.mark.parametrize("query", [WHOLE, ONE, TWO], ids=["whole", "one", "two"])
@pytest.mark.parametrize("order", ["by owner", "mixed"])
def test_rows_come_piece_by_piece_whoever_owns_them(cache, query, order):
    """In mixed order, hardly any piece has a single owner."""
    baseline = cache.baseline()
    partitions = sorted(baseline.owners, key=lambda p: (baseline.owners[p], p))
    if order == "mixed":
        random.Random(3).shuffle(partitions)
        partitions = partitions[:300]
    scan = cache.scan(partitions, PageSizes(), baseline, named(query, cache.name, " ORDER BY _KEY"))
    found = keys_of(scan, query.num_columns - 1)
    assert found == by_pieces(partitions, lambda group: keys_of(cache.scan(group, PageSizes(), baseline)))
    assert len(found) == ROWS or order == "mixed"


def test_small_pages_and_conditions(cache):
    baseline = cache.baseline()
    small = RowQuery('SELECT _KEY, X FROM "PUBLIC"."QUERIED" WHERE (X < ?)', (3000,), 2, 1 << 20)
    found = keys_of(cache.scan(baseline.owners, PageSizes(), baseline, small))
    assert sorted(found) == list(range(1000))
    none = RowQuery('SELECT _KEY, X FROM "PUBLIC"."QUERIED" WHERE (X < ?)', (-1,), 2, 18)
    assert keys_of(cache.scan(baseline.owners, PageSizes(), baseline, none)) == []


def test_pieces():
    pieces = Pieces([9, 3, *range(100, 200), 1])
    first = [9, 3, *range(100, 98 + PIECE_PARTITIONS)]
    assert len(first) == PIECE_PARTITIONS and pieces.first(pieces.partitions) == first
    rest = pieces.partitions[PIECE_PARTITIONS:]
    assert pieces.first(rest) == rest and rest[-1] == 1
    assert (pieces.leader(3), pieces.leader(1)) == (9, rest[0])


def test_a_statement_that_the_node_refuses_is_an_error_at_once(cache):
    baseline = cache.baseline()
    wrong = RowQuery('SELECT _KEY, Y FROM "PUBLIC"."QUERIED"')
    with pytest.raises(ServerError, match='Column "Y" not found'):
        keys_of(cache.scan(baseline.owners, PageSizes(), baseline, wrong))


def test_a_node_that_cannot_look_at_some_partitions(cache, monkeypatch):
    """Ignite before 2.12 would read all partitions, and return each row several times."""
    open_to = Router.open_to

    def to_an_old_node(router, node):
        channel = open_to(router, node)
        channel.features -= {Feature.QUERY_PARTITIONS}
        return channel

    monkeypatch.setattr(Router, "open_to", to_an_old_node)
    baseline = cache.baseline()
    with pytest.raises(IgniteTfError, match="cannot query single partitions"):
        keys_of(cache.scan(baseline.owners, PageSizes(), baseline, named(ONE, cache.name)))


@pytest.mark.faults
@pytest.mark.parametrize(
    "page_rows", [16, pytest.param(1 << 20, marks=pytest.mark.nightly)], ids=["short pages", "long pages"]
)
def test_a_node_is_lost_in_the_middle(own_nodes, page_rows):
    with connect(own_nodes.connect_options) as client:
        cache = filled(client, "QUERIED", backups=1)
        baseline = cache.baseline()
        victim = baseline.owners[0]
        order = sorted(baseline.owners, key=lambda p: (baseline.owners[p] != victim, p))
        expected = by_pieces(order, lambda group: keys_of(cache.scan(group, PageSizes(), baseline)))
        query = RowQuery(ONE.statement, row_bytes=(1 << 22) // page_rows)
        query = named(query, cache.name, " ORDER BY _KEY")
        found, is_killed = [], False
        for series in cache.scan(order, PageSizes(), baseline, query).series():
            for page in series.pages():
                reader = Reader(page.page.rows)
                for _ in range(page.page.num_rows):
                    found.append(read_value(reader))
                    skip_value(reader)
            if len(found) > 500 and not is_killed:
                is_killed = True
                kill(own_nodes, client, victim)
        assert is_killed
        assert found == expected
