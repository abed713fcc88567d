"""Tests of orders, reports and records as JSON, exchanged between processes, hosts and package versions."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.launch.jobs import JobStatus
from ignite_tf_magic.runs.orders import (
    HostProblem,
    HostReport,
    Order,
    Phase,
    TaskSlot,
    WorkerEnd,
    job_name,
    place_of,
)
from ignite_tf_magic.runs.record import HostRecord, PastGeneration, RunRecord, RunSpec, WorkerRecord
from ignite_tf_magic.runs.states import RunState

names = st.text(max_size=6)
optional_names = st.none() | names
numbers = st.integers(0, 1 << 40)
workers = st.integers(0, 200)
times = st.floats(0, 2e9)
lines = st.lists(names, max_size=3).map(tuple)
partitions = st.none() | st.lists(st.integers(0, 1023), max_size=3, unique=True).map(sorted).map(tuple)
seats = st.builds(TaskSlot, workers, names, names, partitions, numbers, numbers)
orders = st.builds(
    Order, numbers, st.sampled_from(Phase), st.lists(seats, max_size=3).map(tuple), lines, names
)
ends = st.builds(
    WorkerEnd,
    code=st.none() | st.integers(-64, 255),
    reason=optional_names,
    oom=st.booleans(),
    ended_at=times,
    asked_to_end=st.booleans(),
    exception=optional_names,
    traceback=optional_names,
    last_lines=lines,
)
reports = st.builds(
    HostReport,
    names,
    generation=numbers,
    reachable=st.booleans(),
    silent_s=times,
    ports=st.dictionaries(workers, st.integers(0, 65535), max_size=3),
    address=optional_names,
    up=st.frozensets(workers, max_size=3),
    pids=st.dictionaries(workers, numbers, max_size=3),
    ends=st.dictionaries(workers, ends, max_size=2),
    last_lines=st.dictionaries(workers, names, max_size=2),
    living=lines,
    fence=numbers,
    stop_asked=st.booleans(),
    error=st.none() | st.builds(HostProblem, names, names, st.booleans()),
)
specs = st.builds(
    RunSpec,
    names,
    num_workers=workers,
    command=lines,
    args=lines,
    after_import=st.dictionaries(names, names, max_size=2),
    deadline_s=st.none() | times,
    hosts=lines,
    port_range=st.none() | st.tuples(numbers, numbers),
    log_limit_bytes=st.none() | numbers,
)
records = st.builds(
    RunRecord,
    names,
    specs,
    st.sampled_from(RunState),
    times,
    workers=st.lists(st.builds(WorkerRecord, workers, names, numbers), max_size=2).map(tuple),
    order=orders,
    hosts=st.lists(
        st.builds(HostRecord, names, optional_names, addresses=lines, nodes=lines), max_size=2
    ).map(tuple),
    past=st.lists(st.builds(PastGeneration, numbers, lines, names, times), max_size=2).map(tuple),
    topology=lines,
    end=st.none() | ends,
    is_retryable=st.none() | st.booleans(),
    reason=optional_names,
)


def travelled(value):
    return json.loads(json.dumps(value.to_json()))


def with_unknown_fields(value):
    """Return the value as a later version of this package might write it, with unknown fields."""
    if isinstance(value, list):
        return [with_unknown_fields(each) for each in value]
    if not isinstance(value, dict) or not any(
        name in value for name in ("worker", "host", "generation", "code", "name", "run_id", "cache", "kind")
    ):
        return {k: with_unknown_fields(v) for k, v in value.items()} if isinstance(value, dict) else value
    return {**{name: with_unknown_fields(each) for name, each in value.items()}, "added_later": {"x": [1]}}


@given(orders)
def test_an_order_arrives_as_it_was_sent(order):
    assert Order.from_json(travelled(order)) == order
    assert Order.from_json(with_unknown_fields(travelled(order))) == order


@given(reports)
def test_a_report_arrives_as_it_was_sent_but_for_its_silence_which_the_reader_judges(report):
    for sent in (travelled(report), with_unknown_fields(travelled(report))):
        arrived = HostReport.from_json(sent, reachable=False, silent_s=7.0)
        assert arrived == dataclasses.replace(report, reachable=False, silent_s=7.0)


@settings(max_examples=60)
@given(records)
def test_a_record_is_read_as_it_was_written(record):
    assert RunRecord.from_json(travelled(record)) == record
    assert RunRecord.from_json(with_unknown_fields(travelled(record))) == record


def test_what_an_older_version_did_not_write_has_defaults():
    assert Order.from_json({}) == Order()
    assert HostReport.from_json({"host": "a"}, reachable=True, silent_s=0.0) == HostReport("a")
    record = RunRecord.from_json(
        {"run_id": "x", "spec": {"cache": "c"}, "state": "running", "started_at": 1, "workers": []}
    )
    assert (record.order, record.past, record.version) == (Order(), (), 1)


@pytest.mark.parametrize(
    "content", [None, [], {}, 3, {"run_id": "x"}, {"run_id": "x", "spec": 3, "state": "running"}]
)
def test_what_is_no_record_is_refused(content):
    with pytest.raises(ValueError, match="not the record of a run"):
        RunRecord.from_json(content)


def test_a_state_that_this_version_does_not_know_is_refused():
    with pytest.raises(ValueError, match="dreaming"):
        RunRecord.from_json({"run_id": "x", "spec": {"cache": "c"}, "state": "dreaming", "workers": []})


@given(st.integers(1, 10**6), workers)
def test_the_name_of_a_job_tells_generation_and_worker(generation, worker):
    assert place_of(JobStatus(job_name(generation, worker))) == (generation, worker)


@pytest.mark.parametrize(
    "name", ["", "reconciler", "g1-worker-", "g-worker-1", "gx-worker-1", "g1-worker-x", "-worker-"]
)
def test_other_jobs_are_no_workers(name):
    assert place_of(JobStatus(name)) is None


def test_hosts_of_an_order_come_in_the_order_of_its_workers():
    order = Order(seats=tuple(TaskSlot(i, host, "n:1", None) for i, host in enumerate("bcab")))
    assert order.hosts == ("b", "c", "a")
    assert [seat.worker for seat in order.on("b")] == [0, 3]


def test_where_a_worker_has_run(tmp_path):
    past = (PastGeneration(1, ("a", "b"), "x", 0.0), PastGeneration(2, ("a",), "y", 0.0))
    record = RunRecord("x", RunSpec("c"), RunState.RUNNING, 0.0, (WorkerRecord(0, "b"), WorkerRecord(1, "c")),
                       Order(3), past=past)  # fmt: skip
    assert record.hosts_of(0) == ((1, "a"), (2, "a"), (3, "b"))
    assert record.hosts_of(1) == ((1, "b"), (3, "c"))
