"""Tests of a cache without SQL table and with more workers than nodes: each worker counts its rows for all."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ignite_tf_magic.client.cache_facts import forget, read_facts, update_facts
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.dataset import share_counts
from ignite_tf_magic.dataset.share_counts import SharesToCount
from ignite_tf_magic.errors import format_ranges
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.session import RunRequest, RunState, open_session
from tests.client.rows import put_all
from tests.waiting import until

CACHE, ROWS, WORKERS = "UNCOUNTED", 20_000, 4
READ = """
import json, os
import ignite_tf_magic
told = json.load(open(os.environ["IGNITE_DATASET_ASSIGNMENT_FILE"]))["rows_by_worker"]
found = ignite_tf_magic.batches("UNCOUNTED", 960)
taken = [batch["key"].tolist() for batch in found]
again = sum(len(batch["key"]) for batch in ignite_tf_magic.batches("UNCOUNTED", 960))
print(json.dumps([told, found.num_steps, again, [len(each) for each in taken], sorted(sum(taken, []))]))
"""


@pytest.fixture
def session(ignite, tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    with open_session(ignite.connect_options, report=print) as opened:
        plain = opened.client.create_cache(CacheConfig(CACHE, backups=1))
        put_all(plain, [(key, b"x" * 100) for key in range(ROWS)])
        yield opened
        opened.client.destroy_cache(CACHE)
        forget(opened.client, CACHE)


def shares_of(session):
    plan = session.plan_run(RunRequest(CACHE, READ, num_workers=WORKERS))
    return plan, [format_ranges(seat.partitions) for seat in plan.seats]


def test_workers_make_the_steps_of_one_process(session):
    plan, _ = shares_of(session)
    assert not any(seat.is_counted for seat in plan.seats)
    assert "nodes cannot count parts of cache 'UNCOUNTED' by SQL" in plan.warnings[-1]
    assert sum(seat.rows for seat in plan.seats) == ROWS
    run = session.start_run(RunRequest(CACHE, READ, num_workers=WORKERS))
    texts = dict.fromkeys(range(WORKERS), "")
    for chunk in run.follow():
        texts[chunk.worker] += chunk.text
    assert run.info().state is RunState.SUCCEEDED, texts
    told, num_steps, again, steps, keys = zip(
        *(json.loads(text.splitlines()[-1]) for text in texts.values()), strict=True
    )
    assert {sum(each) for each in told} == {ROWS} and set(num_steps) == {-(-ROWS // 960)}
    assert sorted(itertools.chain(*keys)) == list(range(ROWS))
    assert [sum(step) for step in zip(*steps, strict=True)] == [960] * (ROWS // 960) + [ROWS % 960]
    assert list(again) == [len(each) for each in keys]


@pytest.fixture
def count(ignite):
    """Count as a worker process does. A process counts once per run name, so the stored result is removed."""

    def counted(shares, worker, run):
        share_counts._counted.pop((CACHE, SharesToCount(worker, tuple(shares), run)), None)
        with connect(ignite.connect_options) as client:
            return SharesToCount(worker, tuple(shares), run).count(client, CACHE)

    return counted


@pytest.fixture
def reads(monkeypatch):
    """The partitions counted, in order of requests. Requests for partitions in `slow` take over a second."""
    read, slow = Cache.partition_stats, set()

    def counted(self, partitions):
        found.append(tuple(partitions))
        time.sleep(1.2 * bool(slow.intersection(found[-1])))
        return read(self, found[-1])

    found = []
    monkeypatch.setattr(Cache, "partition_stats", counted)
    return found, slow


def test_who_does_not_count_is_waited_for_and_then_counted(session, count, monkeypatch):
    monkeypatch.setattr(share_counts, "_PATIENCE_S", 0.5)
    plan, shares = shares_of(session)
    stats = session.client.cache(CACHE).partition_stats()
    rows = tuple(sum(stats[each].rows for each in seat.partitions) for seat in plan.seats)
    assert count(shares, 2, "alone/1") == rows
    session.client.cache(CACHE).remove_all(range(5000))
    with ThreadPoolExecutor(WORKERS) as pool:
        later = [pool.submit(count, shares, worker, "alone/1") for worker in range(WORKERS)]
        assert [each.result() for each in later] == [rows] * WORKERS  # the first stored count stays valid
        anew = {pool.submit(count, shares, worker, "alone/2").result() for worker in (3, 0, 1)}
    assert len(anew) == 1 and sum(anew.pop()) == ROWS - 5000


def test_one_that_goes_on_counting_is_waited_for(session, count, reads, monkeypatch):
    """Its count takes longer than the time that others wait for a worker that has not started counting."""
    monkeypatch.setattr(share_counts, "_PATIENCE_S", 5.0)
    monkeypatch.setattr(share_counts, "_RENEWED_S", 0.1)
    found, slow = reads
    slow.update(range(100, 156))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(count, ["0-99", "100-155"], 1, "slow/1")
        until(lambda: found)
        assert count(["0-99", "100-155"], 0, "slow/1") == other.result()
    assert sorted(each for some in found for each in some) == list(range(156))


def test_one_that_has_ended_while_it_counted_is_counted(session, count, monkeypatch):
    monkeypatch.setattr(share_counts, "_PATIENCE_S", 0.5)
    _, shares = shares_of(session)
    claims = {str(worker): "gone:1" for worker in range(WORKERS)}
    odd = {"later/1": {"at": None}, "later/2": 7, "dead/1": {"at": time.time(), "rows": {}, "claims": claims}}
    update_facts(session.client, CACHE, lambda facts: {**facts, "shares": odd})
    assert sum(count(shares, 0, "dead/1")) == ROWS


def test_notes_of_many_runs_are_not_kept(session, count, monkeypatch):
    monkeypatch.setattr(share_counts, "_MOST_KEPT", 3)
    _, shares = shares_of(session)
    for number in range(5):
        with ThreadPoolExecutor(WORKERS) as pool:
            begun = [pool.submit(count, shares, worker, f"kept/{number}") for worker in range(WORKERS)]
            assert len({each.result() for each in begun}) == 1
    assert list(read_facts(session.client, CACHE)["shares"]) == ["kept/2", "kept/3", "kept/4"]
