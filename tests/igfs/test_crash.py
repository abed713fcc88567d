"""Writers and nodes that are killed during writes: a short form of `make faults`."""

from __future__ import annotations

import pytest

from benchmarks import crash
from benchmarks.crash import Known, Torn, check, kill_nodes, kill_writers, numbers_in, sealed

pytestmark = pytest.mark.faults


def unheard(line: str) -> None:
    del line


def test_a_killed_writer_leaves_old_or_new(ignite, own_name):
    said: list[str] = []
    row = kill_writers(ignite.connect_options, "either", 9, said.append, own_name)
    assert row["whole"] == row["rounds"] > 4, said
    assert (row["torn"], row["fsck_clean"]) == (0, True), said


@pytest.mark.nightly
def test_a_killed_node_loses_nothing(new_cluster):
    """Nightly. Shorter: tests/igfs/test_lost_answers.py::test_whole_files"""
    said: list[str] = []
    row = kill_nodes(new_cluster(num_nodes=3), 2, said.append)
    assert row == {
        "case": "node killed during writes",
        "rounds": 2,
        "whole": 2,
        "torn": 0,
        "fsck_clean": True,
    }, said


def test_the_check_finds_what_is_torn():
    data = sealed(1, 100) + sealed(2, 0) + sealed(3, 5000)
    assert numbers_in(data) == [1, 2, 3]
    for damaged in (data[:-1], data[1:], data[:50] + b"?" + data[51:], data + b"x"):
        with pytest.raises(Torn):
            numbers_in(damaged)


def test_the_check_finds_what_is_lost(new_volume, own_name):
    volume = new_volume(own_name)
    known = crash.begin(volume)
    volume.write_file(("log",), sealed(1, 10) * 2)
    check(volume, known, 1, 2, finished=True)
    assert known == Known(0, [1, 1], 0, late=1)
    for name, content in [
        ("log", sealed(1, 10)),
        ("log", sealed(1, 10) * 2 + sealed(3, 5)),
        ("state", sealed(7, 7)),
        ("checkpoint", sealed(2, 10)),
        ("ckpt-0.data", sealed(0, 10)[:-1]),
    ]:
        there = crash.read(volume, (name,))
        volume.write_file((name,), content)
        with pytest.raises((Torn, OSError)):
            check(volume, known, 2, 0, finished=False)
        volume.write_file((name,), there)
    check(volume, known, 2, 0, finished=False)
    with pytest.raises(Torn, match="nothing of it"):
        check(volume, known, 2, 0, finished=True)
