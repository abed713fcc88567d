"""Tests of plans, readers and supervision while Ignite nodes join, leave, or stop answering."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.errors import ConnectionLost
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.hosts.counting import count_cache
from ignite_tf_magic.runs.hosts.topology import connect_to_most
from ignite_tf_magic.runs.logs.mirror import seen_directory
from ignite_tf_magic.runs.orders import HostReport
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.registry import origins
from ignite_tf_magic.runs.registry.origins import RemoteRun
from ignite_tf_magic.runs.registry.publisher import new_owner
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.registry.registry_host_pool import RegistryHostPool
from ignite_tf_magic.runs.supervision.planning import LaunchFacts, plan_launch
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.session import RunRequest, Session
from tests.runs.light_runs import reach_of, running_record
from tests.waiting import until

SPEC = RunSpec(cache="CHANGING", num_workers=2, script_name="cell", args=(), cwd=".")


class LosesSight:
    """A client whose first list of nodes lacks one node, as while a node leaves."""

    def __init__(self, client) -> None:
        self._client = client
        self.num_asked = 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    def nodes(self):
        self.num_asked += 1
        return self._client.nodes()[1 if self.num_asked == 1 else 0 :]


def test_no_partition_is_left_out_while_a_node_leaves(ignite, client):
    session = Session(ignite.connect_options, client, print)
    session.load("CHANGING", {"x": np.arange(500)}, replace=True)
    looking = LosesSight(client)

    cache = count_cache(looking, SPEC.cache)
    assert looking.num_asked > 1
    plan = plan_launch(SPEC, LaunchFacts(cache, dict.fromkeys(cache.nodes, HostRecord("here"))))
    assert sum(seat.rows for seat in plan.seats) == 500
    client.destroy_cache("CHANGING")


def test_a_node_that_was_cut_off_is_passed_over(ignite, own_node):
    alone = own_node.connect_options
    three = ignite.connect_options
    options = replace(three, endpoints=(*alone.endpoints, *three.endpoints))
    with connect(options) as first, connect_to_most(options) as most, connect_to_most(alone) as only:
        assert [len(each.nodes()) for each in (first, most, only)] == [1, 3, 1]


def test_a_session_goes_over_to_the_rest_of_the_cluster(ignite, own_node, client):
    alone = own_node.connect_options
    options = replace(ignite.connect_options, endpoints=(*alone.endpoints, *ignite.connect_options.endpoints))
    Session(ignite.connect_options, client, print).load("CHANGING", {"x": np.arange(300)}, replace=True)
    with Session(options, connect(alone), print) as cut_off:
        cut_off.load("CHANGING", {"x": np.arange(100)})  # the rows that this part of the split cluster has
        planned = cut_off.plan_run(RunRequest("CHANGING", "pass", 2))
        assert len(cut_off.client.nodes()) == 3
    assert sum(row.rows for row in planned.rows) == 300
    client.destroy_cache("CHANGING")


def test_hosts_are_not_blamed_for_a_registry_that_cannot_be_read(clock):
    pool = RegistryHostPool(20.0)  # timeouts divided by 20: reads at most every 0.1 s
    pool.follow(running_record("a"))
    pool.feed({"a": {**HostReport("a").to_json(), "counter": 1}})
    clock.now += 1.0  # the registry cannot be read
    assert pool.silence_s("a") <= 0.1
    pool.feed({"a": {**HostReport("a").to_json(), "counter": 1}})
    assert pool.silence_s("a") <= 0.2
    for _ in range(10):
        clock.now += 0.1
        pool.feed({"a": {**HostReport("a").to_json(), "counter": 1}})
    assert pool.silence_s("a") > pool.lapse_s


def has_owner_now(origin: RemoteRun, record: RunRecord) -> bool:
    origin.look(record)
    return origin.has_owner(record)


@pytest.mark.parametrize("detached", [True, False])
def test_hosts_that_succeed_each_other_are_given_time(ignite, client, tmp_path, monkeypatch, detached):
    monkeypatch.setattr(origins, "_ASK_S", 0.0)
    directory: RunDirectory = seen_directory(tmp_path, "r")
    record = running_record(detached=detached)
    timeouts = Timeouts(owner_lapse_s=0.2, pool_lapse_s=0.2)

    def registry(**options) -> Registry:
        return Registry(client, timeouts=timeouts, **options)

    origin = RemoteRun(directory, reach_of(tmp_path), registry)
    assert not has_owner_now(origin, record)
    with registry() as index:
        index.touch_owner("r", new_owner(), detached=detached)
        assert has_owner_now(origin, record)
        until(lambda: index.owner("r") is None)
    assert has_owner_now(origin, record) is detached
    assert not has_owner_now(RemoteRun(directory, reach_of(tmp_path), registry), record)


def test_a_client_is_closed_if_its_node_dies_while_it_is_asked(ignite, monkeypatch):
    """A real node never dies exactly between these two requests, so the test simulates it. The client must close."""
    ask, close, asked, closed = Client.nodes, Client.close, count(), []

    def nodes(client):
        if next(asked):
            raise ConnectionLost("127.0.0.1:10800", "connection reset")
        return ask(client)

    def close_and_note(client):
        closed.append(client)
        close(client)

    monkeypatch.setattr(Client, "nodes", nodes)
    monkeypatch.setattr(Client, "close", close_and_note)
    with pytest.raises(ConnectionLost):
        connect_to_most(ignite.connect_options)
    assert len(closed) == 1
