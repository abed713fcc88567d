"""Tests of how the submitter of a detached run sees it after the handover."""

from __future__ import annotations

import pytest

from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.registry.origins import LocalRun, RemoteRun
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session.submission import _origin


@pytest.mark.parametrize(
    ("ssh_names", "kind"),
    [([None], LocalRun), ([None, "db2"], RemoteRun), (["db1"], RemoteRun), (["db1", "db2"], RemoteRun)],
)
def test_a_run_of_several_hosts_is_judged_by_all_of_them(tmp_path, ssh_names, kind):
    hosts = tuple(HostRecord(f"host{number}", ssh=ssh) for number, ssh in enumerate(ssh_names))
    record = RunRecord("mnist-1", RunSpec("MNIST"), RunState.RUNNING, 1.0, hosts=hosts, detached=True)
    origin = _origin(record, RunDirectory(tmp_path), Reach(tmp_path), lambda: pytest.fail("nobody asks"))
    assert type(origin) is kind
