"""Tests of runs over links of 150 ms with 3 % packet loss; `python -m benchmarks.slow_links` runs many."""

from __future__ import annotations

import pytest

from benchmarks.slow_links import NUM_WORKERS, is_good, play


@pytest.mark.parametrize("detach", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_run_over_slow_links_has_each_line_once_and_no_restart(home, bed, tmp_path, detach):
    folder = tmp_path / "links"
    folder.mkdir()
    row = play(bed, folder, 1, detach=detach, num_lines=500)
    assert is_good(row), row
    assert row["lines"] == NUM_WORKERS * 500
