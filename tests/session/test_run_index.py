"""Tests of finding this machine's runs by the start of their ids. No cluster is contacted."""

from __future__ import annotations

import os
import time

import pytest

from ignite_tf_magic.errors import RunNotFound
from ignite_tf_magic.launch.lock import HeldLock
from ignite_tf_magic.runs.directory import RunDirectory, resolve_prefix
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session.run_index import RunIndex
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint


@pytest.fixture
def index(tmp_path):
    for number, name in enumerate(("abc-mnist-1121-0900", "xyz-mnist-1121-0901", "abd-cifar-1121-0902")):
        directory = RunDirectory(tmp_path / "runs" / name)
        directory.path.mkdir(parents=True)
        record = RunRecord(name, RunSpec("MNIST"), RunState.SUCCEEDED, time.time() + number, exit_code=0)
        record.write(directory)
    return RunIndex(tmp_path, Reach(tmp_path), None)


@pytest.mark.parametrize("wanted", ["abd-cifar-1121-0902", "abd", "cifar", "c"])
def test_found_by_the_beginning(index, wanted):
    assert index.find(wanted).id == "abd-cifar-1121-0902"


def test_oldest_first(index):
    assert [info.id[:3] for info in index.runs(include_ended=True)] == ["abc", "xyz", "abd"]
    assert list(index.runs()) == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("mnist", "may be any of abc-mnist-1121-0900, xyz-mnist-1121-0901; write more of its id"),
        ("ab", "may be any of abc-mnist-1121-0900, abd-cifar-1121-0902; write more of its id"),
        ("abd-cifra-1121-0902", "did you mean 'abd-cifar-1121-0902'? `ps --all` lists all"),
        ("other", "no run 'other': `ps --all` lists all"),
        ("", "no run ''"),
        ("..", "no run '..'"),
        ("../../etc", "no run '../../etc'"),
        ("abc-mnist-1121-0900\n", "no run"),
    ],
)
def test_not_found(index, wanted, words):
    with pytest.raises(RunNotFound) as error:
        index.find(wanted)
    assert words in str(error.value)


def test_one_that_goes_on_counts_before_those_that_have_ended(index, tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "abe-mnist-1121-0903")
    directory.path.mkdir()
    record = RunRecord(directory.run_id, RunSpec("MNIST"), RunState.RUNNING, time.time() + 9)
    record.write(directory)
    with pytest.raises(RunNotFound, match="may be any of"):  # the run has no owner that confirms it
        index.find("mnist")
    owner = HeldLock(directory.owner_lock)
    assert index.find("mnist").id == index.find("ab").id == index.find("a").id == directory.run_id
    assert index.find("abc").id == "abc-mnist-1121-0900"
    owner.release()


@pytest.mark.parametrize(
    ("runs", "wanted", "chosen"),
    [
        ({"k3f-mnist-1121-0900": False}, "k3f", "k3f-mnist-1121-0900"),
        ({"mnist-1121-0900-k3f": False}, "mnist", "mnist-1121-0900-k3f"),  # an id in the old format
        ({"mni-x-1121-0900": False, "k3f-mnist-1121-0900": True}, "mni", "k3f-mnist-1121-0900"),
        ({"mnist-1121-0900-k3f": False, "9xw-mnist-1121-0900": True}, "mnist", "9xw-mnist-1121-0900"),
        ({"k3f-a-1121-0900": False}, "a-1121", "k3f-a-1121-0900"),
        ({"k3f-a-1121-0900": False}, "1121", None),
        ({}, "a", None),
    ],
)
def test_a_run_is_meant_by_its_id_or_its_name(runs, wanted, chosen):
    assert resolve_prefix(runs, wanted) == chosen


def test_there_are_none(tmp_path):
    with pytest.raises(RunNotFound, match="no run 'x': none is known here"):
        RunIndex(tmp_path, Reach(tmp_path), None).find("x")


@pytest.mark.parametrize(("silent_days", "is_shown"), [(0.5, True), (1.5, False)])
def test_a_lost_run_is_listed_for_a_day_after_its_last_words(tmp_path, silent_days, is_shown):
    now, day_s = time.time(), 86_400
    directory = RunDirectory(tmp_path / "runs" / "long-1121-0900-abc")
    directory.path.mkdir(parents=True)
    RunRecord(directory.run_id, RunSpec("MNIST"), RunState.RUNNING, now - 5 * day_s).write(directory)
    directory.log(0).touch()
    os.utime(directory.log(0), (now - silent_days * day_s,) * 2)
    listed = RunIndex(tmp_path, Reach(tmp_path), None).runs()
    assert [info.state for info in listed] == [RunState.LOST] * is_shown


def test_hosts_of_another_cluster_are_not_asked(tmp_path):
    """If a cluster's Ignite is down, only hosts of that cluster are asked, not those of the user's other cluster."""

    def index_of(cluster: str) -> RunIndex:
        return RunIndex(tmp_path, Reach(tmp_path), ConnectOptions((Endpoint.parse(cluster),)))

    for cluster, ssh in (("127.0.0.1:1", "red1"), ("127.0.0.1:2", "blue1")):
        hosts = (HostRecord(ssh, ssh=ssh),)
        record = RunRecord("mnist-1", RunSpec("MNIST"), RunState.RUNNING, 1.0, hosts=hosts)
        index_of(cluster)._remember([record])
    assert [host.name for host in index_of("127.0.0.1:1").known_hosts()] == ["red1"]
    listed = index_of("127.0.0.1:2").runs()
    assert any("blue1" in warning for warning in listed.warnings)
    assert not any("red1" in warning for warning in listed.warnings)


def test_the_list_of_hosts_of_an_earlier_version_is_read(tmp_path):
    (tmp_path / "hosts.json").write_text('[["db1", "db1.internal", null]]')
    index = RunIndex(tmp_path, Reach(tmp_path), ConnectOptions((Endpoint.parse("127.0.0.1:1"),)))
    assert [(host.name, host.ssh) for host in index.known_hosts()] == [("db1", "db1.internal")]
