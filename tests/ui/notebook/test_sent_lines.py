"""Tests which lines of a flood of output reach the front end: a bounded number, with some of every worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.ui.live_output import LiveOutput
from ignite_tf_magic.ui.notebook.sent_lines import SentLines, fair_places

TASKS = [f"worker {number}" for number in range(4)]
FLOOD = [(0, f"line {number}") for number in range(100_000)]


@pytest.fixture
def output():
    return LiveOutput(TASKS)


def test_who_writes_little_has_all_of_it_sent(output):
    quiet = [(1, f"quiet {number}") for number in range(50)]
    sent = SentLines().take([*quiet, *FLOOD], output)
    assert sent["tasks"]["worker 1"] == {"end": 50, "lines": [text for _, text in quiet]}
    gap, *lines = sent["tasks"]["worker 0"]["lines"]
    assert gap == f"... {100_000 - len(lines):,} lines left out; %ignite_tf logs --all shows them"
    assert lines == [f"line {number}" for number in range(100_000 - len(lines), 100_000)]
    assert 200 < len(lines) < 400
    assert sent["all"]["end"] == 100_050
    assert sent["all"]["lines"][1:51] == [f"worker 1 | quiet {number}" for number in range(50)]


def test_the_tail_has_the_last_lines_of_each_and_all(output):
    lines = SentLines()
    lines.take([(2, "alone")], output)
    lines.take(FLOOD, output)
    tail = lines.tail()
    assert tail["tasks"]["worker 2"] == {"end": 1, "lines": ["alone"]}
    assert tail["tasks"]["worker 0"]["end"] == 100_000
    assert tail["tasks"]["worker 0"]["lines"] == [f"line {number}" for number in range(99_800, 100_000)]
    assert tail["all"] == {
        "end": 100_001,
        "lines": [f"worker 0 | line {number}" for number in range(99_800, 100_000)],
    }
    assert lines.last == tuple(tail["all"]["lines"])


def test_one_worker_alone_and_lines_of_nobody_have_no_tab(output):
    assert SentLines().take([(0, "a"), (None, "b")], LiveOutput(["worker 0"]))["tasks"] == {}
    assert list(SentLines().take([(0, "a"), (None, "b")], output)["tasks"]) == ["worker 0"]


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(0, 2_000)), max_size=300))
def test_what_is_sent_is_bounded_and_the_last_of_each(drawn):
    lines = [(worker, "x" * length) for worker, length in drawn]
    kept = fair_places(lines)
    assert kept == sorted(set(kept))
    assert sum(len(lines[place][1]) for place in kept) <= 64_000
    for worker in {worker for worker, _ in lines}:
        own = [place for place, (other, _) in enumerate(lines) if other == worker]
        sent = [place for place in kept if lines[place][0] == worker]
        assert sent == own[len(own) - len(sent) :]
        assert sent  # five sources, with output that belongs to no worker: each gets at least one line
