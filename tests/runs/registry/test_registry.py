"""Tests of the registry on real nodes: one writer wins, lost replies are resolved, damaged rows do no harm."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.errors import (
    ConfigError,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    RecordChanged,
    RecordDamaged,
    ServerError,
)
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.ops import AtomicityMode, CacheMode, Status
from ignite_tf_magic.runs.hosts.topology import TopologyWatch, topology_of
from ignite_tf_magic.runs.record import RunRecord, RunSpec
from ignite_tf_magic.runs.registry.publisher import Publisher
from ignite_tf_magic.runs.registry.registry import CACHE, FailureDetector, Owner, Registry
from ignite_tf_magic.runs.states import RunEvent, RunState
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from tests.waiting import until

OWNER = Owner("db1", 42, "a1b2")


@pytest.fixture
def registry(client):
    """An empty registry."""
    if CACHE in client.cache_names():
        cache = Cache(client, CACHE)
        cache.remove_all([key for key, _ in all_rows(cache)])
    return Registry(client)


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing(ignite):
    yield
    with connect(ignite.connect_options) as client:
        _drop(client)


def _drop(client):
    if CACHE in client.cache_names():
        client.destroy_cache(CACHE)


@pytest.fixture
def cache(client):
    return Cache(client, CACHE)


def plain_record(run, **facts):
    return {"run_id": run, "state": "starting", **facts}


def test_reading_creates_nothing(registry, client):
    _drop(client)
    assert list(registry.runs()) == []
    assert registry.runs().warnings == ()
    assert registry.get("r") is None and registry.owner("r") is None
    assert registry.reports("r") == {} and registry.requests("r") == {}
    registry.remove("r")
    assert CACHE not in client.cache_names()


def test_the_cache_is_on_every_node_and_wholly_consistent(registry, client):
    _drop(client)
    registry.create(plain_record("r"))
    config = client.cache(CACHE).config()
    assert (config.mode, config.atomicity) == (CacheMode.REPLICATED, AtomicityMode.TRANSACTIONAL)
    assert config.write_mode == CacheConfig("x").write_mode
    assert config.read_from_backup is False


def test_a_record_and_its_versions(registry):
    first = registry.create(plain_record("r"))
    assert (first.run_id, first.version) == ("r", 1)
    second = registry.replace(first, {"run_id": "r", "state": "running"})
    assert second.record == {"run_id": "r", "state": "running", "version": 2}
    assert registry.get("r") == second
    for attempt in (
        lambda: registry.replace(first, {"state": "failed"}),
        lambda: registry.create(plain_record("r")),
    ):
        with pytest.raises(RecordChanged, match="r was written by another"):
            attempt()
    assert registry.get("r") == second
    third = registry.replace(second, {"state": "failing", "version": 7})
    assert third.version == 7
    registry.remove("r")
    with pytest.raises(RecordChanged):
        registry.replace(third, third.record)
    assert registry.get("r") is None and list(registry.runs()) == []


@pytest.mark.parametrize("run", ["übung-1121-0412-k3f", "训练", "a b'\"\\", "🦆" * 10])
def test_any_text_is_a_name(registry, run):
    stored = registry.create(plain_record(run, words="ß\u2028\x00"))
    registry.report(run, "höst/1", {"counter": 1})
    registry.touch_owner(run, OWNER)
    assert [entry.record for entry in registry.runs()] == [stored.record]
    assert registry.get(run) == stored
    assert registry.reports(run) == {"höst/1": {"counter": 1}}
    registry.remove(run)
    assert registry.reports(run) == {} and registry.owner(run) is None


@pytest.mark.parametrize("run", ["", "a/b", "\udc80"])
def test_what_cannot_be_a_name_is_refused(registry, run):
    for attempt in (lambda: registry.create(plain_record(run)), lambda: registry.touch_owner(run, OWNER)):
        with pytest.raises(ConfigError):
            attempt()
    assert list(registry.runs()) == []


def test_of_racing_writers_one_wins_each_version(registry, ignite):
    """Four clients write to one record concurrently. Each successful write gets its own version."""
    registry.create(plain_record("r", won=[]))

    def count(writer):
        wins = 0
        with connect(ignite.connect_options) as own:
            mine = Registry(own)
            while wins < 25:
                seen = mine.get("r")
                try:
                    mine.replace(seen, {**seen.record, "won": [*seen.record["won"], writer]})
                except RecordChanged:
                    continue
                wins += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    last = registry.get("r")
    assert last.version == 101
    assert sorted(last.record["won"]) == sorted(list(range(4)) * 25)


def test_many_create_report_and_ask_at_once(registry):
    def start(number):
        registry.create(plain_record(f"r{number}"))
        registry.report("r0", f"host{number}", {"counter": number})
        registry.request("r0", **{f"wish{number}": True})

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(start, range(12)))
    assert {entry.record["run_id"] for entry in registry.runs()} == {f"r{n}" for n in range(12)}
    assert registry.reports("r0") == {f"host{n}": {"counter": n} for n in range(12)}
    assert registry.requests("r0") == {f"wish{n}": True for n in range(12)}


def test_an_owner_that_falls_silent_is_lost(client, registry):
    quick = Registry(client, timeouts=replace(Timeouts(), owner_lapse_s=0.5))
    quick.create(plain_record("r"))
    assert not registry.runs().entries[0].owner_alive
    quick.touch_owner("r", OWNER)
    quick.touch_owner("r", replace(OWNER, counter=1))
    assert registry.owner("r") == replace(OWNER, counter=1)
    assert registry.runs().entries[0].owner_alive
    until(lambda: registry.owner("r") is None)
    until(lambda: not registry.runs().entries[0].owner_alive)
    quick.touch_owner("r", OWNER)
    assert registry.runs().entries[0].owner == OWNER


def test_requests_add_up(registry):
    registry.request("r", stop=True)
    registry.request("r", wait=5)
    assert registry.requests("r") == {"stop": True, "wait": 5}


GARBAGE = [b"\x00\xff", 7, "", "{", "[]", "{}", '{"record":5}', '{"record":{"run_id":"other","version":1}}']


@pytest.mark.parametrize(
    "garbage",
    [*GARBAGE, '{"record":{"run_id":"r","version":"1"}}', "[" * 100_000],
    ids=lambda garbage: repr(garbage)[:30],
)
def test_a_damaged_record_is_passed_over_and_built_again(registry, cache, garbage):
    registry.create(plain_record("good"))
    registry.create(plain_record("r"))
    cache.put("record/r", garbage)
    listing = registry.runs()
    assert [entry.record["run_id"] for entry in listing] == ["good"]
    assert len(listing.warnings) == 1 and "record/r" in listing.warnings[0]
    with pytest.raises(RecordDamaged):
        registry.get("r")
    assert registry.rebuild([plain_record("r", version=3)]) == ("r",)
    assert registry.get("r").version == 3


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_other_damaged_rows_say_nothing(registry, cache, garbage):
    registry.create(plain_record("r"))
    for key in ("owner/r", "hosts/r", "host/r/h", "request/r"):
        cache.put(key, garbage)
    assert not registry.runs().entries[0].owner_alive
    assert registry.reports("r") == {} or garbage in GARBAGE[5:]
    registry.report("r", "h", {"counter": 1})
    registry.request("r", stop=True)
    assert registry.reports("r") == {"h": {"counter": 1}}
    assert registry.requests("r")["stop"] is True


def test_a_damaged_index_is_said_and_built_again(registry, cache):
    kept = [registry.create(plain_record(run)).record for run in ("a", "b")]
    cache.put("index", "?")
    assert len(registry.runs()) == 0
    assert "index" in registry.runs().warnings[0]
    assert registry.rebuild(kept) == ()
    assert {entry.record["run_id"] for entry in registry.runs()} == {"a", "b"}
    assert registry.runs().warnings == ()


def test_building_again_never_goes_back(registry, client):
    newer = registry.replace(registry.create(plain_record("r")), {"state": "running"})
    assert registry.rebuild([plain_record("r", version=1), plain_record("r", version=2)]) == ()
    assert registry.get("r") == newer
    hosts = [
        plain_record("r", version=5, host="a"),
        plain_record("r", version=7, host="b"),
        plain_record("s", version=1),
    ]
    assert registry.rebuild(hosts) == ("r", "s")
    assert registry.get("r").record == hosts[1]
    with pytest.raises(RecordChanged):
        registry.replace(newer, newer.record)
    _drop(client)
    assert registry.rebuild(hosts) == ("r", "s")
    assert len(registry.runs()) == 2


def test_a_cluster_that_was_emptied_is_written_to_anew(registry, client):
    stored = registry.create(plain_record("r"))
    _drop(client)
    assert registry.get("r") is None
    with pytest.raises(RecordChanged):
        registry.replace(stored, stored.record)
    registry.report("r", "h", {"counter": 1})
    assert registry.reports("r") == {"h": {"counter": 1}}
    assert registry.create(plain_record("r")).version == 1


class Loss:
    """Makes the reply of the next write get lost, before or after the write. Then calls `then`, e.g. another writer."""

    def __init__(self, monkeypatch, error, *, is_carried_out):
        self.then = lambda: None
        self.num_lost = 0
        for name in ("replace_if_equals", "put_if_absent"):
            self._break(monkeypatch, name, getattr(Cache, name), error, is_carried_out)

    def _break(self, monkeypatch, name, call, error, is_carried_out):
        def broken(cache, key, *values):
            if self.num_lost or not key.startswith("record/"):
                return call(cache, key, *values)
            self.num_lost = 1
            if is_carried_out:
                call(cache, key, *values)
            self.then()
            raise error

        monkeypatch.setattr(Cache, name, broken)


LOSSES = [ConnectionLost("here", "for this test"), ServerError(Status.FAILED, "cache_put", "node left")]


@pytest.mark.parametrize("error", LOSSES, ids=["connection", "server"])
@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_lost_answer_is_found_out(registry, monkeypatch, error, is_carried_out):
    first = registry.create(plain_record("r"))
    loss = Loss(monkeypatch, error, is_carried_out=is_carried_out)
    second = registry.replace(first, {"state": "running"})
    assert loss.num_lost == 1
    assert second.version == 2 and registry.get("r") == second
    loss.num_lost = 0
    assert registry.create(plain_record("s")) == registry.get("s")
    assert loss.num_lost == 1


def test_a_lost_answer_and_another_writer_after_it(registry, monkeypatch):
    """The write succeeded, and then another writer overwrote it. The result is valid, but no longer the newest."""
    first = registry.create(plain_record("r"))
    loss = Loss(monkeypatch, LOSSES[0], is_carried_out=True)
    loss.then = lambda: registry.replace(registry.get("r"), {"state": "failing"})
    second = registry.replace(first, {"state": "running"})
    assert second.record["state"] == "running"
    assert registry.get("r").record == {"run_id": "r", "state": "failing", "version": 3}
    with pytest.raises(RecordChanged):
        registry.replace(second, {"state": "succeeded"})


def test_a_lost_request_and_another_writer_instead(registry, monkeypatch):
    first = registry.create(plain_record("r"))
    loss = Loss(monkeypatch, LOSSES[0], is_carried_out=False)
    loss.then = lambda: registry.replace(first, {"state": "failing"})
    with pytest.raises(RecordChanged):
        registry.replace(first, {"state": "running"})
    assert registry.get("r").record["state"] == "failing"


def test_what_will_never_be_allowed_is_not_tried_again(registry, monkeypatch):
    first = registry.create(plain_record("r"))
    refused = ServerError(Status.SECURITY_VIOLATION, "cache_put", "Authorization failed")
    loss = Loss(monkeypatch, refused, is_carried_out=False)
    with pytest.raises(ServerError, match="Authorization"):
        registry.replace(first, {})
    assert loss.num_lost == 1


def test_a_cluster_that_is_down():
    nowhere = ConnectOptions(endpoints=(Endpoint("127.0.0.1", 1),))
    with Registry(lambda: connect(nowhere), patience_s=0.2) as registry:
        with pytest.raises(ConnectionFailed):
            registry.runs()
        with pytest.raises(DeadlineExceeded, match="hosts can be asked over SSH"):
            registry.create(plain_record("r"))


def test_a_client_of_its_own_is_closed_and_made_again(ignite, registry):
    made = []

    def make():
        made.append(connect(ignite.connect_options))
        return made[-1]

    with Registry(make) as mine:
        mine.create(plain_record("r"))
        mine.close()
        assert mine.get("r").version == 1
    assert len(made) == 2


def test_a_pulse_counts_on_the_readers_clock():
    pulse = FailureDetector()
    assert pulse.feed(None, 100.0) == 0
    assert pulse.feed(None, 104.0) == 4  # never seen
    assert pulse.feed(5, 105.0) == 0
    assert pulse.feed(5, 108.5) == 3.5
    assert pulse.feed(None, 109.0) == 4  # an unreadable row is not a sign of life
    assert pulse.feed(5, 110.0) == 5
    assert pulse.feed(0, 111.0) == 0  # the host restarted
    assert pulse.feed(0, 112.0) == 1


@pytest.mark.faults
def test_nodes_die_while_it_is_written(own_nodes):
    """Two writers change one record while nodes die. The record has each successful write once, and no failed one."""
    won, stop = ([], []), threading.Event()

    def count(writer):
        options = replace(own_nodes.connect_options, timeout_s=5.0)
        with Registry(lambda: connect(options), patience_s=60) as mine:
            number = 0
            while not stop.is_set():
                seen = mine.get("r")
                mark = f"{writer}.{number}"
                number += 1
                try:
                    mine.replace(seen, {**seen.record, "won": [*seen.record["won"], mark]})
                    won[writer].append(mark)
                    mine.touch_owner("r", OWNER)
                except RecordChanged:
                    continue

    with Registry(lambda: connect(own_nodes.connect_options), patience_s=60) as registry:
        registry.create(plain_record("r", won=[]))
        with ThreadPoolExecutor(2) as pool:
            counting = [pool.submit(count, writer) for writer in range(2)]
            try:
                for victim in own_nodes.nodes[:2]:
                    goal = len(won[0]) + len(won[1]) + 50
                    until(lambda goal=goal: len(won[0]) + len(won[1]) > goal)
                    os.kill(victim.pid, signal.SIGKILL)
                goal = len(won[0]) + 20
                until(lambda: len(won[0]) > goal)
            finally:
                stop.set()
            for each in counting:
                each.result()
        last = registry.get("r").record
        assert last["version"] == len(last["won"]) + 1
        assert sorted(last["won"]) == sorted(won[0] + won[1])
        assert [entry.record for entry in registry.runs()] == [last]


def test_who_answers_has_a_standing_only_where_most_nodes_are(registry, client):
    nodes = [*topology_of(client.nodes())]
    standing = registry.standing(nodes)
    assert standing == client.router.control_node_id() == registry.standing(())
    assert registry.standing([nodes[0], "10.1.1.1:10800", "10.1.1.2:10800"]) is None


def test_an_owner_that_takes_over_and_ends_at_once_publishes_the_end(registry, client, ignite):
    """The row still belongs to the previous owner. Otherwise a run that ends at once would be listed as running."""
    left = RunRecord("r", RunSpec("C"), RunState.RUNNING, time.time(), left_until=time.time() + 600)
    registry.create({**left.to_json(), "told": left.version})
    ended = replace(
        left.happened(RunEvent.ALL_SUCCEEDED, exit_code=0), left_until=None, version=left.version + 1
    )
    with Publisher(Registry(lambda: connect(ignite.connect_options)), "r", Timeouts()) as publisher:
        publisher.publish(ended)
    assert registry.get("r").record["state"] == "succeeded"


def _publish(connect_late, _):
    publisher = Publisher(Registry(connect_late), "late", Timeouts())
    publisher.publish(RunRecord("late", RunSpec(CACHE), RunState.RUNNING, time.time()))
    return publisher


def _watch(connect_late, client):
    return TopologyWatch(connect_late, CACHE, [*topology_of(client.nodes())])


@pytest.mark.parametrize("begin", [_publish, _watch])
def test_a_connection_that_comes_after_the_end_is_closed(begin, registry, client, ignite, monkeypatch):
    """A cluster may answer after the publisher stopped waiting. No one else would close that late connection."""
    monkeypatch.setattr("ignite_tf_magic.runs.registry.publisher._LAST_WORD_S", 0.1)
    is_asked, may_answer, made = threading.Event(), threading.Event(), []

    def connect_late():
        is_asked.set()
        may_answer.wait()
        made.append(connect(ignite.connect_options))
        return made[-1]

    registry.create(plain_record("r"))
    before = set(threading.enumerate())
    with begin(connect_late, client):
        is_asked.wait()
        (thread,) = set(threading.enumerate()) - before
    may_answer.set()
    thread.join()
    with pytest.raises(ConnectionFailed, match="has been closed"):
        made[0].nodes()
