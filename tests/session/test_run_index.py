"""Finding runs by the beginnings of their ids, among those of this machine. No cluster is asked here."""

from __future__ import annotations

import os
import time

import pytest

from ignite_tf_magic.config.options import ConnectOptions, Endpoint
from ignite_tf_magic.errors import RunNotFound
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session.run_index import RunIndex


@pytest.fixture
def index(tmp_path):
    for number, name in enumerate(("mnist-1121-0900-abc", "mnist-1121-0901-xyz", "cifar-1121-0902-abc")):
        directory = RunDirectory(tmp_path / "runs" / name)
        directory.path.mkdir(parents=True)
        record = RunRecord(name, RunSpec("MNIST"), RunState.SUCCEEDED, time.time() + number, exit_code=0)
        record.write(directory)
    return RunIndex(tmp_path, Reach(tmp_path), None)


@pytest.mark.parametrize("wanted", ["cifar-1121-0902-abc", "cif", "c"])
def test_found_by_the_beginning(index, wanted):
    assert index.find(wanted).id == "cifar-1121-0902-abc"


def test_oldest_first(index):
    assert [info.id[:10] for info in index.runs(include_ended=True)] == [
        "mnist-1121",
        "mnist-1121",
        "cifar-1121",
    ]
    assert list(index.runs()) == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("mnist-1121", "may be any of mnist-1121-0900-abc, mnist-1121-0901-xyz; write more of its id"),
        ("cifra-1121-0902-abc", "did you mean 'cifar-1121-0902-abc'? `ps --all` lists all"),
        ("other", "no run 'other': `ps --all` lists all"),
        ("", "no run ''"),
        ("..", "no run '..'"),
        ("../../etc", "no run '../../etc'"),
        ("mnist-1121-0900-abc\n", "no run"),
    ],
)
def test_not_found(index, wanted, words):
    with pytest.raises(RunNotFound) as error:
        index.find(wanted)
    assert words in str(error.value)


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
    """Whose Ignite does not answer wants its own runs: the same user's other cluster has none of them."""

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
