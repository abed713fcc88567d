"""Tests of caches that lost rows with a node: every later reader refuses them or warns."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import RowsLost
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.session import RunRequest, Session

pytestmark = pytest.mark.faults
HEAP = EmbeddedOptions(heap="256m", num_nodes=3)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Three nodes, one of which was killed after the caches were loaded, and restarted empty."""
    home = tmp_path_factory.mktemp("damaged")
    home.chmod(0o700)
    with ExitStack() as ends:
        ends.callback(down, home, delete_data=True)
        cluster = ensure_up(HEAP, Lifetime.UNTIL_IDLE, home=home).cluster
        with Session(cluster.connect_options, connect(cluster.connect_options), print) as session:
            for name, rows, backups in (
                ("TWENTY", 20, 0),
                ("MANY", 3000, 0),
                ("TOLD", 3000, 0),
                ("SAFE", 3000, 1),
            ):
                session.load(name, {"x": np.arange(rows)}, backups=backups)
            encoder = RowEncoder("FOREIGN", {"x": np.arange(3000)}, np.arange(3000))
            put_rows(session.client.create_cache(table_config("FOREIGN", encoder, 0)), encoder)
            os.kill(cluster.nodes[1].pid, signal.SIGKILL)
            yield ensure_up(HEAP, Lifetime.UNTIL_IDLE, home=home).cluster


@pytest.fixture
def session(damaged):
    said = []
    with Session(damaged.connect_options, connect(damaged.connect_options), said.append) as session:
        session.said = said
        yield session


def where(cluster):
    return {"host": "127.0.0.1", "port": cluster.nodes[0].port}


@pytest.mark.parametrize(("cache", "rows"), [("TWENTY", 20), ("MANY", 3000)])
def test_a_start_is_refused_that_would_train_on_what_is_left(session, cache, rows):
    left = session.client.cache(cache).size()
    assert left < rows
    with pytest.raises(RowsLost, match=rf"{left:,} rows.* {rows:,} .*--replace.*--allow-partial"):
        session.plan_run(RunRequest(cache, "pass"))


@pytest.mark.parametrize(("cache", "rows"), [("TWENTY", 20), ("MANY", 3000)])
def test_a_dataset_is_refused_that_would_read_what_is_left(damaged, session, cache, rows, monkeypatch):
    left = session.client.cache(cache).size()
    with pytest.raises(RowsLost, match=rf"{left:,} rows.* {rows:,} .*allow_partial=True"):
        IgniteDataset(cache, **where(damaged))

    def num_rows(dataset):
        return sum(int(batch["key"].shape[0]) for batch in dataset.batch(1000))

    assert num_rows(IgniteDataset(cache, **where(damaged), allow_partial=True)) == left
    monkeypatch.setenv("IGNITE_DATASET_ALLOW_PARTIAL", "true")
    assert num_rows(IgniteDataset(cache, **where(damaged))) == left


def test_what_nobody_has_counted_shows_by_a_node_without_rows(damaged, session):
    with pytest.raises(RowsLost, match=r"no row in any of its \d+ partitions"):
        session.plan_run(RunRequest("FOREIGN", "pass"))
    with pytest.raises(RowsLost, match=r"no row in any of its \d+ partitions"):
        IgniteDataset("FOREIGN", **where(damaged))


def test_what_backups_have_kept_is_trained_on_without_a_word(damaged, session):
    planned = session.plan_run(RunRequest("SAFE", "pass", 2))
    assert sum(row.rows for row in planned.rows) == 3000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IgniteDataset("SAFE", **where(damaged))
    assert session.said == []


@pytest.mark.nightly
def test_what_was_allowed_once_is_said_from_then_on(session):
    """Nightly. Shorter: test_a_start_is_refused_that_would_train_on_what_is_left"""
    request = RunRequest("TOLD", "pass")
    left = session.client.cache("TOLD").size()
    planned = session.plan_run(replace(request, allow_partial=True))
    assert sum(row.rows for row in planned.rows) == left
    assert any("3,000" in line and "--allow-partial" in line for line in session.said)
    session.said.clear()
    session.plan_run(request)
    assert any(f"{left:,} of the 3,000 rows" in line for line in session.said)


@pytest.mark.nightly
def test_rows_that_somebody_removed_are_warned_of(ignite, client):
    """Nightly. Shorter: test_another_cache_of_the_same_name_is_not_measured_by_the_last_one"""
    said = []
    session = Session(ignite.connect_options, client, said.append)
    session.load("REMOVED", {"x": np.arange(3000)}, backups=0, replace=True)
    cache = client.cache("REMOVED")
    cache.remove_all(np.arange(30))
    with pytest.warns(UserWarning, match=r"2,970 rows.* 3,000 "):
        IgniteDataset("REMOVED", host="127.0.0.1", port=ignite.nodes[0].port)
    session.plan_run(RunRequest("REMOVED", "pass"))
    assert any("2,970 rows" in line and "3,000" in line for line in said)
    said.clear()
    session.plan_run(RunRequest("REMOVED", "pass"))  # already counted and reported
    assert said == []
    client.destroy_cache("REMOVED")


def test_another_cache_of_the_same_name_is_not_measured_by_the_last_one(ignite, client):
    said = []
    session = Session(ignite.connect_options, client, said.append)
    session.load("AGAIN", {"x": np.arange(3000)}, replace=True)
    session.load("AGAIN", {"x": np.arange(10)}, replace=True)
    session.plan_run(RunRequest("AGAIN", "pass"))
    assert said == []
    client.destroy_cache("AGAIN")


def test_a_load_that_lost_rows_on_its_way_says_so(own_nodes):
    with Session(own_nodes.connect_options, connect(own_nodes.connect_options), print) as session:
        control = session.client.router.control_node_id()
        port = next(n.endpoints[0].port for n in session.client.nodes() if n.node_id != control)
        victim = next(node.pid for node in own_nodes.nodes if node.port == port)
        has_struck = []

        def strike(done: int, _: int) -> None:
            if done > 30_000 and not has_struck:
                has_struck.append(done)
                os.kill(victim, signal.SIGKILL)

        rows = {"x": np.zeros((60_000, 100), np.uint8)}
        with pytest.raises(RowsLost, match=r"60,000 were written: a node left"):
            session.load("ON_ITS_WAY", rows, backups=0, progress=strike)
        assert has_struck
