"""A dataset opened by the cache's SQL table name, alone and in a run that was assigned the cache."""

from __future__ import annotations

import json

import pytest

from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.dataset.array_batches import batches
from ignite_tf_magic.dataset.options import read_options
from ignite_tf_magic.dataset.source import open_source

CACHE = "SQL_PUBLIC_READ_BY_TABLE"
ROWS = 40


@pytest.fixture
def where(ignite):
    query = SqlClient(ignite.connect_options).query
    query("CREATE TABLE READ_BY_TABLE (ID BIGINT PRIMARY KEY, X BIGINT)")
    query(f"INSERT INTO READ_BY_TABLE VALUES {', '.join(f'({i}, {i})' for i in range(ROWS))}")
    yield {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    query("DROP TABLE READ_BY_TABLE")


def test_a_tables_rows_are_read(where):
    source = open_source(read_options("read_by_table", **where))
    assert (source.cache, source.baseline.size) == (CACHE, ROWS)
    read = [value for batch in batches("read_by_table", 7, **where) for value in batch["val"]["X"].tolist()]
    assert sorted(read) == list(range(ROWS))


@pytest.mark.parametrize("name", ["READ_BY_TABLE", "public.read_by_table", CACHE])
def test_a_worker_reads_its_share_by_any_name(where, tmp_path, monkeypatch, name):
    record = {"cache": CACHE, "worker": 0, "rows_by_worker": [1, 39], "partitions": {"0": [1, 100]}}
    (tmp_path / "assignment").write_text(json.dumps(record))
    monkeypatch.setenv("IGNITE_DATASET_ASSIGNED_CACHE", CACHE)
    monkeypatch.setenv("IGNITE_DATASET_ASSIGNMENT_FILE", str(tmp_path / "assignment"))
    monkeypatch.setenv("IGNITE_DATASET_PART", "0-3")
    options = read_options(name, **where)
    assert (options.cache, options.partitions) == (CACHE, (0, 1, 2, 3))
    assert options.assignment.rows_by_worker == (1, 39)
    assert open_source(options).partitions == (0, 1, 2, 3)
