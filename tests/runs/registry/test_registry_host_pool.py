"""Tests of host states of a detached run, derived from registry rows that appear, stop changing, and vanish."""

from __future__ import annotations

from ignite_tf_magic.runs.orders import HostReport
from ignite_tf_magic.runs.registry.registry_host_pool import RegistryHostPool
from tests.runs.light_runs import running_record


def row(counter, host="a"):
    return {**HostReport(host, 1).to_json(), "counter": counter}


def test_a_host_is_heard_while_its_counter_changes(clock):
    pool = RegistryHostPool(1.0)
    pool.follow(running_record("a"))
    for counter in range(3):
        pool.feed({"a": row(counter)})
        clock.now += 0.02
    assert pool.reports()["a"].reachable
    assert pool.silence_s("a") < 1


def test_a_row_that_vanishes_is_a_host_that_says_nothing_new(clock):
    """For example after the cache was lost. Silence counts from the last row that was seen, not from the beginning."""
    pool = RegistryHostPool(1000.0)  # all timeouts are divided by this, so that they lapse at once
    pool.follow(running_record("a"))
    pool.feed({"a": row(1)})
    clock.now += 0.05
    pool.feed({})
    report = pool.reports()["a"]
    assert not report.reachable
    assert report.error is None
    assert 0 <= report.silent_s < 1


def test_a_host_that_was_never_heard_is_silent_since_somebody_listens(clock):
    """The host may be about to start, and a previous supervisor may have seen it a moment ago."""
    pool = RegistryHostPool(1.0)
    pool.follow(running_record("a", "b"))
    pool.feed({"a": row(1)})
    assert "b" not in pool.reports()
    for counter in range(2, 10):
        clock.now += 1.0
        pool.feed({"a": row(counter)})
    report = pool.reports()["b"]
    assert not report.reachable
    assert report.error is None
    assert report.silent_s == 8


def test_nobody_is_silent_while_the_registry_cannot_be_read(clock):
    pool = RegistryHostPool(1.0)
    pool.follow(running_record("a", "b"))
    clock.now += 60.0
    pool.feed({"a": row(1)})
    assert "b" not in pool.reports()
