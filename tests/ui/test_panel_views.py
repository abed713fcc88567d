"""Tests of the panel's data: numbers that a browser can read, whatever runs have written to igfs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.runs.record import RunInfo
from ignite_tf_magic.session import PanelSeen, RunState
from ignite_tf_magic.session.panel_feed import NodeSeen
from ignite_tf_magic.training.records import RecordReader, TrainingRecord, WorkerMeasures, without_repeats
from ignite_tf_magic.ui.panel_views import panel_as_json

NOW = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
RUN = RunInfo(
    "a1b-digits-0101-1200",
    RunState.RUNNING,
    None,
    "DIGITS",
    ("one", "two"),
    0,
    NOW - timedelta(minutes=3),
    None,
    2,
    Path("nowhere"),
    (),
    None,
    tasks=("worker 0", "worker 1", "ps 0"),
)


def record(step: int, *workers: WorkerMeasures) -> TrainingRecord:
    return TrainingRecord(NOW.timestamp(), "fit-0", 0, step, values={"loss": 1 / (step + 1)}, workers=workers)


def shown(run: RunInfo, *records: TrainingRecord) -> dict:
    [found] = panel_as_json(PanelSeen(runs=(run,), records={run.id: records}), NOW)["runs"]
    return found


def test_of_many_that_ended_the_newest_are_told_and_all_are_counted():
    ended = [replace(RUN, id=f"r{number}", state=RunState.SUCCEEDED, ended_at=NOW) for number in range(150)]
    told = panel_as_json(PanelSeen(runs=(RUN, *ended)), NOW)
    assert [run["id"] for run in told["runs"]] == [f"r{n}" for n in range(149, 49, -1)] + [RUN.id]
    assert told["num_ended"] == 150


def test_workers_of_a_live_run_are_told_apart_over_time():
    records = [
        record(
            step,
            WorkerMeasures(memory_bytes=2**30, cpu_cores=1.5 + step / 1000),
            WorkerMeasures(gpu_share=0.25, cpu_cores=0.5),
        )
        for step in range(300)
    ]
    first, second = shown(RUN, *records)["measures"]
    assert (first["task"], first["memory"], first["gpu"]) == ("worker 0", "1 GiB", [])
    assert first["cpu"][0] == 1.6 and first["cpu"][-1] == 1.8 and 20 < len(first["cpu"]) <= 41
    assert second["gpu"] == [0.25] * len(second["gpu"]) and second["memory"] == ""


def test_a_chief_that_trains_speaks_for_itself():
    run = replace(RUN, tasks=("worker 0", "worker 1", "ps 0", "chief"))
    [chief] = shown(run, record(1, WorkerMeasures(cpu_cores=1.0)))["measures"]
    assert chief["task"] == "chief"


def test_a_worker_that_trains_alone_is_not_taken_for_the_first():
    [one] = shown(RUN, record(1, WorkerMeasures(cpu_cores=1.0)))["measures"]
    assert one["task"] == "one of them"


def test_of_runs_that_have_ended_or_told_nothing_there_is_nothing():
    told = record(1, WorkerMeasures(cpu_cores=1.0))
    assert shown(replace(RUN, state=RunState.SUCCEEDED, ended_at=NOW), told)["measures"] == []
    assert shown(RUN)["measures"] == []
    assert shown(RUN, record(1))["measures"] == []


def test_nodes_stand_host_by_host():
    nodes = (NodeSeen("1", "b:2", "b"), NodeSeen("2", "a:1", "a"), NodeSeen("3", "b:1", "b"))
    found = panel_as_json(PanelSeen(nodes=nodes), NOW)["nodes"]
    assert [(node["host"], node["name"]) for node in found] == [("a", "a:1"), ("b", "b:1"), ("b", "b:2")]


any_text = st.text(st.characters(exclude_categories=[]), max_size=3)
odd = st.none() | st.floats() | st.integers(-(10**400), 10**400)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "time": st.floats(0, 1e11),
                "training": st.just("fit-0"),
                "epoch": st.integers(-5, 10**400),
                "is_epoch": st.none() | st.booleans(),
                "step": st.integers(-5, 10**400),
                "batch": st.integers(-5, 10**400),
                "epochs": st.none() | st.integers(-5, 10**400),
                "batches": st.none() | st.integers(-5, 10**400),
                "values": st.dictionaries(
                    st.text(st.characters(exclude_categories=[]), max_size=3), st.floats(), max_size=2
                ),
                "examples_per_s": odd,
                "data_wait": odd,
                "workers": st.lists(
                    st.fixed_dictionaries(
                        {
                            "memory_bytes": odd,
                            "cpu_cores": odd,
                            "gpu_share": odd,
                            "told_by_a_later_version": odd,
                        }
                    ),
                    max_size=3,
                ),
            }
        ),
        max_size=4,
    )
)
def test_whatever_stands_in_a_run_s_file_a_browser_can_read_the_panel(lines):
    told = RecordReader().feed(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    run = replace(RUN, cache="\ud800", tags=("\udfff",))
    found = shown(run, *without_repeats(told))
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
