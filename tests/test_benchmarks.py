"""Tests of the benchmarks at tiny sizes: every variant must move all rows, at any speed."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import replace

import pytest

from benchmarks import (
    cells,
    compare,
    follow,
    igfs,
    launch,
    load,
    pairs,
    parallel,
    scan,
    skew,
    sql,
    steps,
    tables,
)
from benchmarks.cases import Case, fill, mib, mnist
from benchmarks.plan import Effort
from benchmarks.process import Variant, VariantFailed, python_variant
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.embedded import EmbeddedCluster

BRIEF = Effort(seconds=0.01, rounds=2, trial_s=0.01, runs=1)
FIELDS = {"case", "variant", "rows_per_s", "mb_per_s", "peak_rss_mb", "cpu_s_per_million_rows"}


def unheard(line: str) -> None:
    del line


def scanned(ignite: EmbeddedCluster, case: Case, variants: tuple[str, ...]) -> list[dict]:
    small = replace(case, page_rows=case.page_rows[:1])
    return scan.run(ignite.connect_options, small, BRIEF, unheard, variants)


@pytest.mark.nightly
def test_scan_gives_a_row_for_each_variant(ignite, tmp_path, capsys):
    """Nightly. Shorter: test_load_is_measured_beside_pyignite"""
    variants = ("drain", "pyignite", "java_3", "dataset_batch")
    rows = scanned(ignite, mnist(1500), variants)
    assert [row["variant"] for row in rows] == list(variants)
    for row in rows:
        assert row.keys() >= FIELDS | {"ratio_to_drain"}
        assert all(row[name] > 0 for name in ("rows_per_s", "peak_rss_mb")), row
        assert row["cpu_s_per_million_rows"] >= 0
        assert row["mb_per_s"] == pytest.approx(row["rows_per_s"] * 796 / 1e6, abs=0.01)
    assert rows[0]["ratio_to_drain"] == 1
    tables.write(tmp_path, "scan", rows)
    assert json.loads((tmp_path / "scan.json").read_text()) == rows
    tables.show(tables.console(), tmp_path, ("scan", "load"))
    shown = capsys.readouterr().out
    assert all(variant in shown for variant in variants)


@pytest.mark.nightly
def test_rows_of_1_mib_are_bare_byte_arrays(ignite):
    """Nightly. Shorter: test_a_pass_with_another_number_of_rows_is_refused"""
    rows = scanned(ignite, mib(6), ("drain", "java_1"))
    assert [row["case"] for row in rows] == ["mib"] * 2


def test_load_is_measured_beside_pyignite(ignite):
    rows = load.run(ignite.connect_options, 400, replace(BRIEF, rounds=1), unheard, ["mnist"])
    assert [(row["case"], row["variant"]) for row in rows] == [("mnist", variant) for variant in load.MODULES]
    assert all(row.keys() >= FIELDS for row in rows)
    ours, theirs = rows
    assert theirs["ratio_to_pyignite"] == 1
    assert ours["ratio_to_pyignite"] == pytest.approx(ours["rows_per_s"] / theirs["rows_per_s"], abs=0.01)


@pytest.mark.nightly
def test_sql_is_measured_beside_pyignite(ignite):
    """Nightly. Shorter: test_load_is_measured_beside_pyignite"""
    rows = sql.run(ignite.connect_options, 300, replace(BRIEF, rounds=1), unheard)
    assert [row["variant"] for row in rows] == list(sql.VARIANTS)
    assert all(row.keys() >= FIELDS and row["ratio_to_pyignite"] > 0 for row in rows)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_steps_are_measured_by_each_way(ignite):
    """Nightly. Shorter: test_load_is_measured_beside_pyignite"""
    rows = steps.run(ignite.connect_options, 1, 5, unheard)
    assert [row["case"] for row in rows] == ["64-128-10", "24 layers of 64", "3 layers of 1024"]
    assert all(row[f"{way}_ms"] > 0 for row in rows for way in ("fit", "mirrored", "alone", "sum"))


def test_a_pass_with_another_number_of_rows_is_refused(ignite, client: Client):
    case = mnist(50)
    endpoint = ignite.connect_options.endpoints[0]
    fill(client, case)
    try:
        task = {"cache": case.cache, "host": endpoint.host, "port": endpoint.port, "num_rows": 51}
        with python_variant("drain", "read_drain", task) as drain:
            drain.answer()
            with pytest.raises(VariantFailed, match="a pass gave 50 rows, and there are 51"):
                drain.measure(0.01)
    finally:
        client.destroy_cache(case.cache)


@pytest.mark.nightly
def test_igfs_is_measured_beside_the_raw_calls(ignite, monkeypatch):
    """Nightly. No shorter one: no other test runs this benchmark."""
    monkeypatch.setenv("IGNITE_TF_CLUSTER", str(ignite.connect_options.endpoints[0]))
    rows = igfs.run(ignite.connect_options, 2, 1, 1, unheard)
    cases = {(row["case"], row["variant"]) for row in rows}
    assert {("write", "tensorflow"), ("read", "fsspec"), ("checkpoint", "igfs"), ("create", "raw")} <= cases
    assert all(row["ratio_to_raw"] > 0 and "mb_per_s" in row for row in rows)
    assert [row["ratio_to_raw"] for row in rows if row["variant"].startswith("raw")] == [1.0] * 6


def test_a_variant_that_dies_tells_why():
    with Variant("broken", [sys.executable, "-c", "raise SystemExit('no such thing')"]) as broken:
        with pytest.raises(VariantFailed, match=r"(?s)broken ended with exit code 1.*no such thing"):
            broken.answer()


@pytest.mark.nightly
def test_launching_is_measured_on_fake_hosts_and_in_a_cell():
    """Nightly. No shorter one: no other test runs these benchmarks."""
    rows = [*launch.run((2,), 1, 5, unheard), *cells.run(1, 5, 1, unheard)]
    cases = [
        "fan_out",
        "stream",
        "latency",
        "cell",
        "cell",
        "cell",
        "doctor",
        "cell_latency",
        "cell_stream",
        "cell_stream",
    ]
    assert [row["case"] for row in rows] == cases
    assert [row["processes_left"] for row in rows if "processes_left" in row] == [0, 0, 0]
    assert [row["lines_lost"] for row in rows if "lines_lost" in row] == [0]
    assert all(row["stop_s"] > 3 for row in rows if "ignore" in row["variant"])


@pytest.mark.nightly
def test_a_worker_without_rows_trains_with_the_other(ignite):
    """Nightly. Shorter: tests/dataset/test_equal_steps.py::test_global_batches_have_every_row_once"""
    found = skew.run(ignite.connect_options, 1, unheard, ((1, 0),))
    assert found == [{"case": "skew", "rows": "1:0", "runs": 1, "ended": 1, "exact": 1}]


@pytest.mark.nightly
def test_following_is_measured_attached_and_detached(ignite):
    """Nightly. No shorter one: no other test runs this benchmark."""
    rows = follow.run(ignite.connect_options, 0.2, unheard)
    assert [(row["case"], row["variant"], row["lines_per_s"]) for row in rows] == [
        (case, *variant) for case in ("attached", "detached") for variant in (("idle", 0), ("lines", 30))
    ]
    assert all(0 < row["cpu_percent"] < 100 for row in rows)


def test_two_commits_are_compared_by_the_best_of_their_turns():
    turns = {
        "old": [
            {"case": "c", "variant": "v, run 1", "rows_per_s": 50.0, "first_step_s": 4.0, "page_rows": 8}
        ],
        "new": [
            {"case": "c", "variant": "v, run 1", "rows_per_s": 80.0, "first_step_s": 8.0, "peak_rss_mb": 1.0},
            {"case": "c", "variant": "v, run 2", "rows_per_s": 100.0, "first_step_s": 5.0, "ok": True},
        ],
    }
    measured: dict[str, compare.Figures] = {side: defaultdict(list) for side in turns}
    for side, rows in turns.items():
        compare._collect(measured[side], "scan", rows)
    told = {
        row["figure"]: (row["old"], row["new"], row["ratio"], row["as_good"])
        for row in compare._rows(measured, "x")
    }
    assert told == {"rows_per_s": (50.0, 100.0, 2.0, 2.0), "first_step_s": (4.0, 5.0, 1.25, 0.8)}


def test_each_tree_is_asked_by_its_own_package():
    compare.check_imports(compare.ROOT)
    assert set(compare.NAMES) <= compare._benchmarks_of(compare.ROOT)


@pytest.mark.nightly
def test_trees_take_turns_on_the_same_rows(ignite, client: Client):
    """Nightly. No shorter one: no other test runs this benchmark."""
    trees = {"old": compare.ROOT, "new": compare.ROOT}
    measuring = pairs.Pairs(trees, 3, 0.01, unheard)
    case = mnist(1500)
    fill(client, case)
    try:
        rows = [
            *pairs.scan_pairs(measuring, ignite.connect_options, case, "dataset_batch"),
            *pairs.igfs_pairs(measuring, ignite.connect_options, "stat"),
            *pairs.igfs_pairs(measuring, ignite.connect_options, "read_tf"),
            *pairs.training_pairs(measuring, ignite.connect_options, case, "two_workers", "ignite"),
        ]
    finally:
        client.destroy_cache(case.cache)
    assert [(row["case"], row["commit"], row["turns"]) for row in rows] == [
        (name, "old", 3) for name in ("mnist", "stat", "read_tf", "two_workers")
    ]
    assert all(0 < row["quarter"] <= row["median"] <= row["three_quarters"] for row in rows)


@pytest.mark.nightly
def test_readers_side_by_side_share_the_rows(ignite):
    """Nightly. Shorter: test_a_pass_with_another_number_of_rows_is_refused"""
    rows = parallel.run(ignite.connect_options, mnist(1500), BRIEF, unheard, [2])
    assert [row["variant"] for row in rows] == ["dataset_batch, 2 readers", "drain, 2 readers"]
    assert all(row["at_once_rows_per_s"] > 0 and row["ratio_to_sum"] > 0 for row in rows)
    assert (rows[0]["ratio_to_limit"] > 0, rows[1]["ratio_to_limit"]) == (True, None)
