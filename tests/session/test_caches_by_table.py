"""Tests that sessions accept the name of a cache's SQL table in place of the cache's name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.client.cache_facts import forget, load_mark, read_facts, update_facts
from ignite_tf_magic.doctor.cluster_checks import look_at_cluster
from ignite_tf_magic.errors import CacheExists, CacheNameError, CacheNotFound, LoadNotResumed
from ignite_tf_magic.session import RunRequest, RunState, cache_names, open_session
from ignite_tf_magic.settings.options import Config

CACHE = "SQL_PUBLIC_CATS_BY_NAME"
ROWS = 50
TELL = """
import json, os
found = {name: os.environ[f"IGNITE_DATASET_{name}"] for name in ("ASSIGNED_CACHE", "ASSIGNMENT_FILE")}
print(json.dumps([found["ASSIGNED_CACHE"], json.load(open(found["ASSIGNMENT_FILE"]))["rows_by_worker"]]))
"""


@pytest.fixture
def told():
    return []


@pytest.fixture
def session(ignite, tmp_path, monkeypatch, told):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    with open_session(ignite.connect_options, report=told.append) as opened:
        yield opened


@pytest.fixture
def cats(session):
    """A SQL table; yields its name in lower case, as a user may write it."""
    session.query("CREATE TABLE CATS_BY_NAME (ID BIGINT PRIMARY KEY, TOES BIGINT)")
    values = ", ".join(f"({number}, {number % 4})" for number in range(ROWS))
    session.query(f"INSERT INTO CATS_BY_NAME VALUES {values}")
    yield "cats_by_name"
    session.query("DROP TABLE CATS_BY_NAME")
    forget(session.client, CACHE)


def test_a_table_is_looked_at(session, cats, ignite):
    assert session.columns(cats) == session.columns(CACHE)
    assert session.columns(cats).cache == CACHE
    assert session.sample(cats, 5) == session.sample(CACHE, 5)
    assert session.profile(cats).cache == CACHE
    sight = look_at_cluster(ignite.connect_options, Config(), cats)
    assert f"{ROWS} rows in" in sight.checks[0].found
    (listed,) = [each for each in session.caches() if each.name == CACHE]
    assert listed.tables == ("PUBLIC.CATS_BY_NAME",)


def test_a_table_gets_rows(session, cats):
    rows = {"TOES": np.arange(3)}
    outcome = session.load(cats, rows, append=True)
    assert (outcome.cache, outcome.rows) == (CACHE, 3)
    assert session.query("SELECT ID, TOES FROM CATS_BY_NAME WHERE ID >= ? ORDER BY ID", [ROWS]).rows == (
        (ROWS, 0),
        (ROWS + 1, 1),
        (ROWS + 2, 2),
    )
    update_facts(
        session.client, CACHE, lambda facts: {**facts, "load": {**facts["load"], "state": "loading"}}
    )
    for _ in range(2):  # the second load finds nothing left to do
        assert session.load(cats, rows, resume=True).cache == CACHE
        assert load_mark(read_facts(session.client, CACHE)).state == "complete"
    assert session.client.cache(CACHE).size() == ROWS + 3
    session.load(cats, {"ID": [0], "TOES": [99]}, key="ID", upsert=True)
    assert session.query("SELECT TOES FROM CATS_BY_NAME WHERE ID = 0").rows == ((99,),)
    for way in ({}, {"replace": True}):
        with pytest.raises(CacheNameError, match=f"which belongs to cache '{CACHE}'"):
            session.load("CATS_BY_NAME", {"TOES": [7]}, **way)
    with pytest.raises(CacheExists):
        session.load(CACHE, {"TOES": [7]})
    with pytest.raises(LoadNotResumed, match=f"cache '{CACHE}' has no unfinished load"):
        session.load(cats, {"TOES": [7]}, resume=True)


def test_a_run_is_of_the_tables_cache(session, cats, told):
    run = session.start_run(RunRequest(cats, TELL, num_workers=2))
    texts = {0: "", 1: ""}
    for chunk in run.follow():
        texts[chunk.worker] += chunk.text
    assert run.info().state is RunState.SUCCEEDED, texts
    caches, shares = zip(*map(json.loads, texts.values()), strict=True)
    assert caches == (CACHE, CACHE)
    assert sum(shares[0]) == ROWS and shares[0] == shares[1]
    assert run.record().spec.cache == CACHE
    assert f"table {cats} is cache {CACHE}" in told


def test_a_run_of_what_is_not_there(session, cats):
    with pytest.raises(CacheNotFound, match=f"did you mean '{CACHE}'"):
        session.plan_run(RunRequest("cats_by_nam", "pass"))


def test_names_that_may_come_next(session, cats, ignite, monkeypatch):
    session.query('CREATE TABLE "cats by name" (ID BIGINT PRIMARY KEY, TOES BIGINT)')
    try:
        monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
        names = cache_names()
    finally:
        session.query('DROP TABLE "cats by name"')
    assert {CACHE, "CATS_BY_NAME", "SQL_PUBLIC_cats by name"} <= set(names)
    assert not [name for name in names if '"' in name]
