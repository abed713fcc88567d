"""A short form of `python -m benchmarks.interleavings`: clients take turns in random order while answers are lost."""

from __future__ import annotations

from benchmarks.interleavings import play


def test_no_byte_is_doubled_lost_or_torn_and_nothing_is_left(ignite, own_name):
    outcome = play(lambda: ignite.connect_options, range(12), print, own_name)
    assert outcome.problems == []
    assert outcome.report.problems == ()
    assert outcome.faults["lost after"] and outcome.faults["error after"]
