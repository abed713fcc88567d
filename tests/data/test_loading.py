"""Loads that fail, are killed, or do not fit: old rows stay, incomplete caches are marked, all nodes survive."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from ignite_tf_magic.client.cache_facts import (
    check_complete,
    forget,
    load_mark,
    mark_loading,
    read_facts,
    spare_name,
)
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.embedded import status
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNameError,
    CacheNotFound,
    LoadIncomplete,
    RegionFull,
    ServerError,
    SourceError,
)
from ignite_tf_magic.serialization.sql_text import folded_name, quoted_name
from ignite_tf_magic.session import RunRequest, open_session
from ignite_tf_magic.ui.render import caches_view
from tests.waiting import until

KILLS = int(os.environ.get("LOAD_KILLS", "2"))
MIB = 1 << 20
OLD = {"x": np.arange(500)}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)


@pytest.fixture
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened
        for name in opened.client.cache_names():
            if name.lower().startswith(("loading", "a b", "a/b")):
                opened.client.destroy_cache(name)
                forget(opened.client, name)


def values(session, cache):
    rows = session.query(f"SELECT X FROM {quoted_name(folded_name(cache))} ORDER BY X").rows
    return [row[0] for row in rows]


@pytest.mark.parametrize("column", ["_KEY", "_key", "_val", "_VAL"])
def test_names_that_ignite_keeps_leave_the_old_cache_and_the_name(session, column):
    session.load("LOADING_NAMES", OLD)
    with pytest.raises(SourceError, match=column):
        session.load("LOADING_NAMES", {column: np.arange(3)}, replace=True)
    assert values(session, "LOADING_NAMES") == OLD["x"].tolist()
    session.load("LOADING_NAMES", {"x": np.arange(2)}, replace=True)
    assert values(session, "LOADING_NAMES") == [0, 1]


def test_names_that_give_one_type(session):
    """Ignite derives the type name a_b from both `A B` and `a/b`, and accepts only one spelling of it."""
    session.load("A B", OLD)
    session.load("a/b", {"x": np.arange(3)})
    session.load("a/b", {"x": np.arange(4)}, replace=True)
    assert values(session, "A B") == OLD["x"].tolist()
    assert values(session, "a/b") == [0, 1, 2, 3]


def test_a_table_of_another_cache_is_refused_before_anything_is_made(session):
    session.load("LOADING_TABLE", OLD)
    with pytest.raises(CacheNameError, match="PUBLIC.LOADING_TABLE, which belongs to cache 'LOADING_TABLE'"):
        session.load("loading_table", OLD)
    for name in ("", 'loading_"quote"'):
        with pytest.raises(CacheNameError, match="cannot name a cache"):
            session.load(name, OLD)
    assert "loading_table" not in session.client.cache_names()
    assert read_facts(session.client, "loading_table") == {}


def test_text_that_cannot_be_written_is_refused_before_anything_is_made(session):
    session.load("LOADING_TEXT", OLD)
    for source in ({"x": ["fine", "half \ud83d"]}, {"x\ud83d": [1]}):
        with pytest.raises(SourceError, match="lone surrogate"):
            session.load("LOADING_TEXT", source, replace=True)
        with pytest.raises(SourceError, match="lone surrogate"):
            session.load("LOADING_NO_TEXT", source)
    assert "LOADING_NO_TEXT" not in session.client.cache_names()
    assert values(session, "LOADING_TEXT") == OLD["x"].tolist()
    session.load("LOADING_TEXT", {"x": ["a\0b"]}, replace=True)
    assert values(session, "LOADING_TEXT") == ["a\0b"]


def test_replacing_leaves_one_cache_and_tells_all_rows(session):
    session.load("LOADING_AGAIN", OLD)
    with pytest.raises(CacheExists):
        session.load("LOADING_AGAIN", OLD)
    told = []
    new = {"x": np.arange(1000) + 7}
    session.load("LOADING_AGAIN", new, replace=True, progress=lambda rows, of: told.append((rows, of)))
    assert told == sorted(told)
    assert told[-1] == (1000, 1000)
    assert values(session, "LOADING_AGAIN") == new["x"].tolist()
    assert spare_name("LOADING_AGAIN") not in session.client.cache_names()
    assert read_facts(session.client, spare_name("LOADING_AGAIN")) == {}
    mark = load_mark(read_facts(session.client, "LOADING_AGAIN"))
    assert (mark.state.value, mark.rows, mark.expected_rows) == ("complete", 1000, 1000)


LOADER = """
import sys, numpy as np
from ignite_tf_magic.session import open_session
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
with open_session(ConnectOptions((Endpoint("127.0.0.1", int(sys.argv[1])),)), report=print) as session:
    rows = {"x": np.arange(int(sys.argv[3])), "y": np.zeros((int(sys.argv[3]), 64), np.uint8)}
    print("begins", flush=True)
    session.load(sys.argv[2], rows, **{way: True for way in sys.argv[4:]})
"""


def kill_load(session, ignite, cache, rows, condition, *ways):
    """Load in another process, and send it SIGKILL when `condition` holds."""
    port = ignite.connect_options.endpoints[0].port
    argv = [
        sys.executable,
        "-c",
        textwrap.dedent(LOADER),
        str(port),
        cache,
        str(rows),
        *(ways or ("replace",)),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as loader:
        assert loader.stdout.readline() == "begins\n"
        until(lambda: condition() or loader.poll() is not None)
        loader.send_signal(signal.SIGKILL)
        assert loader.wait() == -signal.SIGKILL, "it had ended before"


def has_rows(session, cache, rows):
    try:
        return session.client.cache(cache).size() >= rows
    except (CacheNotFound, ServerError):  # the loader is just replacing the cache
        return False


def test_killed_loads_are_marked(session, ignite):
    for number in range(KILLS):
        least = 1 + number * 10_000 // KILLS
        kill_load(
            session,
            ignite,
            "LOADING_KILLED",
            300_000,
            lambda least=least: has_rows(session, "LOADING_KILLED", least),
        )
        with pytest.raises(LoadIncomplete, match=r"of the 300,000 rows of its load.*--replace") as caught:
            check_complete(session.client, "LOADING_KILLED")
        assert least <= caught.value.rows < 300_000
        assert re.search(r"LOADING_KILLED +[\d,]+ of 300,000 ", caches_view(session.caches()).text)
        if number < KILLS - 1:
            session.client.destroy_cache("LOADING_KILLED")
            forget(session.client, "LOADING_KILLED")
    request = RunRequest("LOADING_KILLED", "pass")
    with pytest.raises(LoadIncomplete):
        session.plan_run(request)
    assert session.plan_run(replace(request, allow_partial=True)).rows
    session.load("LOADING_KILLED", OLD, replace=True)
    check_complete(session.client, "LOADING_KILLED")
    assert values(session, "LOADING_KILLED") == OLD["x"].tolist()


def test_a_load_killed_while_it_replaces_leaves_the_old_rows(session, ignite):
    session.load("LOADING_REPLACED", OLD)
    spare = spare_name("LOADING_REPLACED")
    kill_load(session, ignite, "LOADING_REPLACED", 300_000, lambda: has_rows(session, spare, 1))
    check_complete(session.client, "LOADING_REPLACED")
    assert values(session, "LOADING_REPLACED") == OLD["x"].tolist()
    with pytest.raises(LoadIncomplete):
        check_complete(session.client, spare)
    session.load("LOADING_REPLACED", {"x": np.arange(3)}, replace=True)
    assert values(session, "LOADING_REPLACED") == [0, 1, 2]
    assert spare not in session.client.cache_names()


@pytest.mark.nightly
def test_a_load_killed_after_the_old_rows_went_leaves_the_new_ones_and_says_where(session, ignite):
    """Nightly. Shorter: test_a_load_killed_while_it_replaces_leaves_the_old_rows"""
    session.load("LOADING_SWAPPED", OLD)
    spare = spare_name("LOADING_SWAPPED")
    kill_load(session, ignite, "LOADING_SWAPPED", 120_000, lambda: has_rows(session, "LOADING_SWAPPED", 501))
    with pytest.raises(LoadIncomplete, match=f"All of them are in cache '{spare}'"):
        check_complete(session.client, "LOADING_SWAPPED")
    check_complete(session.client, spare)
    assert session.client.cache(spare).size() == 120_000
    session.load("LOADING_SWAPPED", {"x": np.arange(3)}, replace=True)
    assert values(session, "LOADING_SWAPPED") == [0, 1, 2]
    assert spare not in session.client.cache_names()


def test_an_unfinished_cache_is_replaced_without_room_for_both(session, client):
    session.load("LOADING_HALF", OLD)
    mark_loading(client, "LOADING_HALF", 1000)
    seen = []
    session.load("LOADING_HALF", OLD, replace=True, progress=lambda *_: seen.append(client.cache_names()))
    assert not any(spare_name("LOADING_HALF") in names for names in seen)
    check_complete(client, "LOADING_HALF")


def columns_of_size(num_mib, row_bytes=4096):
    return {
        "x": np.arange(num_mib * MIB // row_bytes),
        "y": np.zeros((num_mib * MIB // row_bytes, row_bytes), np.uint8),
    }


def test_a_load_that_does_not_fit_halts_no_node(new_cluster):
    cluster = new_cluster(num_nodes=2, region="128m")
    with open_session(cluster.connect_options, report=print) as session:
        session.load("OTHER", OLD)
        with pytest.raises(RegionFull, match=r"of the 128 MiB of its data region.*local up --region"):
            session.load("LARGE", columns_of_size(3 * 128), backups=1)
        assert "LARGE" not in session.client.cache_names()

        # The size of text is not known in advance.
        text = {"x": np.arange(30_000), "y": np.array(["a" * 4096] * 30_000, object)}
        with pytest.raises(RegionFull, match="data region"):
            session.load("TEXTS", text, backups=1)
        with pytest.raises(LoadIncomplete):
            check_complete(session.client, "TEXTS")
        assert session.client.cache("TEXTS").size() > 10_000
        assert all(node.alive for node in status(cluster.home).nodes)
        assert values(session, "OTHER") == OLD["x"].tolist()

        session.load("TEXTS", columns_of_size(30), replace=True, backups=1)
        with pytest.raises(RegionFull, match="'TEXTS' was not changed.*destroy_cache.'TEXTS'"):
            session.load("TEXTS", columns_of_size(75), replace=True, backups=1)
        check_complete(session.client, "TEXTS")
        assert session.client.cache("TEXTS").size() == 30 * 256
        assert sorted(session.client.cache_names()) == ["OTHER", "TEXTS", "ignite-tf-caches"]
        assert all(node.alive for node in status(cluster.home).nodes)
        with connect(cluster.connect_options) as client:
            assert client.cache("OTHER").size() == 500
