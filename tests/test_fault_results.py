"""Tests of the fault campaign's records: which rounds belong to one state of the code, refusals, concurrent writers."""

from __future__ import annotations

import json
import threading

import pytest

from benchmarks.code_hash import hash_of_rooms, normal_form
from benchmarks.fault_outcome import Outcome
from benchmarks.fault_results import Rounds
from benchmarks.round_file import CodeChanged


def outcome(fault: str = "worker_kill", number: int = 0, divisor: int = 4, **changes) -> Outcome:
    return Outcome(fault, number, divisor, True, changes.pop("script", "light"), 1, **changes)


def test_comments_docstrings_and_layout_do_not_count():
    short = 'def f(a):\n    """What."""\n    return a + 1  # why\n'
    assert normal_form(short) == normal_form("def f(a):\n\n    return (a\n        + 1)\n")
    assert normal_form(short) != normal_form(short.replace("1", "2"))


def test_every_module_of_both_rooms_counts(tmp_path):
    for path in ("runs/a.py", "launch/agent/b.py", "client/c.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    before = hash_of_rooms(tmp_path)
    (tmp_path / "client/c.py").write_text("x = 2\n")
    assert hash_of_rooms(tmp_path) == before
    (tmp_path / "launch/agent/b.py").write_text("x = 2\n")
    assert hash_of_rooms(tmp_path) != before


def test_a_campaign_goes_on_where_it_stopped(tmp_path):
    first = Rounds(tmp_path, lambda: "one")
    first.add(outcome(noticed_s=0.5))
    first.add(outcome(number=1, divisor=1, noticed_s=2.0, recovered_s=3.0))
    first.add(outcome(number=0, script="tensorflow", lost_lines=2, problems=["lost"]))
    again = Rounds(tmp_path, lambda: "one")
    again.begin(anew=False)
    assert [len(again.of("worker_kill", divisor=each)) for each in (1, 4)] == [1, 1]
    (row,) = json.loads((tmp_path / "faults.json").read_text())
    assert row == again.summary()[0]
    assert (row["rounds"], row["finished"], row["failed"], row["code_hash"]) == (2, 2, 0, "one")
    # medians at the default timings
    assert (row["noticed_s_median"], row["recovered_s_median"]) == (2.0, 3.0)
    assert row["timings_divided_by_4"]["noticed_s_median"] == 0.5
    assert (row["tensorflow"]["failed"], row["tensorflow"]["lost_lines"], row["lost_lines"]) == (1, 2, 0)
    assert row["noticed_later_than_stated"] == 1


def test_rounds_of_other_code_are_refused(tmp_path):
    Rounds(tmp_path, lambda: "one").add(outcome())
    later = Rounds(tmp_path, lambda: "two")
    with pytest.raises(CodeChanged, match=r"of other code \(one\) than today's \(two\).*--anew"):
        later.begin(anew=False)
    with pytest.raises(CodeChanged, match="not summed up: one, two"):
        later.add(outcome(number=1))
    later.begin(anew=True)
    assert [row["code_hash"] for row in later.rows] == ["two"]
    assert later.summary()[0]["rounds"] == 1


def test_a_round_during_which_the_code_changed_does_not_count(tmp_path):
    hashes = iter(["one", "two"])
    rounds = Rounds(tmp_path, lambda: next(hashes))
    with pytest.raises(CodeChanged, match="during a round: .*worker_kill"):
        rounds.add(outcome())
    assert not (tmp_path / "faults_rounds.jsonl").exists()


def test_several_campaigns_write_into_one_file(tmp_path):
    def work(fault: str) -> None:
        mine = Rounds(tmp_path, lambda: "one")
        for number in range(20):
            mine.add(outcome(fault, number))

    threads = [threading.Thread(target=work, args=(fault,)) for fault in ("worker_kill", "sshd_kill")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = json.loads((tmp_path / "faults.json").read_text())
    assert [(row["fault"], row["rounds"]) for row in rows] == [("worker_kill", 20), ("sshd_kill", 20)]
