"""Tests of a run that a notebook starts on a cluster, while a shell on another machine watches and stops it."""

from __future__ import annotations

import os
import re

import pytest

from tests.bed.bed import BedKind
from tests.notebooks.executing import execute, placed_rows, rows_of_mine
from tests.ssh.ssh_user import COUNT, by_worker, check_lines
from tests.ui.notebook.kernels import Kernel


@pytest.fixture
def kernel(home, tmp_path):
    started = Kernel(dict(os.environ), tmp_path)
    try:
        started.run("%load_ext ignite_tf_magic")
        yield started
    finally:
        started.close()


@pytest.mark.nightly
def test_a_cell_that_another_machine_stops(kernel, elsewhere):
    """Nightly. Shorter: tests/ssh/test_ssh_elsewhere.py::test_a_run_of_a_notebook"""
    seen = {}

    def look(text):
        if seen or text.count("line 20\n") < 3:
            return
        (seen["listed"],) = elsewhere.json("ps")
        run = seen["listed"]["id"]
        seen["described"] = elsewhere.json("describe", run)
        with elsewhere.start("attach", run) as watching:
            watching.until("line 30\n")
            seen["stopped"] = elsewhere.json("stop", run)
            watching.end()
        seen["attached"] = watching.out

    cell = kernel.run(f"%%ignite_tf start NUMBERS --workers 3 -o run\n{COUNT}", on_stdout=look)
    run = seen["listed"]["id"]
    assert seen["listed"]["hosts"] == ["bed1", "bed2", "bed3"]
    assert [worker["local_rows"] for worker in seen["described"]["workers"]] == [1000, 1000, 1000]
    assert seen["stopped"]["outcome"] == "stopped"
    attached = by_worker(seen["attached"])
    shown = by_worker("".join(f"{line}\n" for line in cell.lines if line.startswith("worker ")))
    assert attached == shown
    assert all(map(check_lines, shown.values()))
    assert sorted(shown) == [0, 1, 2]
    assert "stopped" in kernel.run("print(run.info().state.value)").stdout

    logs = kernel.run(f"%ignite_tf logs {run} --worker 1 --lines 3").text
    assert logs.rstrip().endswith(attached[1].splitlines()[-1])
    assert run in kernel.run("%ignite_tf ps --all").text
    described = kernel.run(f"%ignite_tf describe {run}")
    assert re.search(r"^worker 1 +bed2 ", described.text, re.M)
    assert "ago or long" not in described.text


def test_a_detached_cell_and_the_doctor(kernel, elsewhere):
    started = kernel.run(f"%%ignite_tf start NUMBERS --workers 3 --detach -o run\n{COUNT}")
    assert "its hosts supervise it" in started.stdout
    kernel.run("import os; run_id = run.id")
    doctor = kernel.run("%ignite_tf doctor NUMBERS")
    assert "primary partitions of NUMBERS" in doctor.text
    (view,) = doctor.shown
    assert view["text/html"].count("<tr>") > 30
    assert "checks, none failed" in view["text/html"]
    assert doctor.error is None
    ended = kernel.run("%ignite_tf stop $run_id")
    assert "stopped" in ended.stdout
    assert elsewhere.json("ps") == []
    watched = kernel.run("%ignite_tf attach $run_id")
    for text in by_worker(
        "".join(f"{line}\n" for line in watched.lines if line.startswith("worker "))
    ).values():
        check_lines(text)


@pytest.mark.nightly
def test_the_notebook_of_a_cluster_of_ones_own(home, bed, tmp_path):
    """The reader wrote two files beside the notebook: one with the nodes' addresses, one for SSH to the hosts.

    Nightly. Shorter: test_a_detached_cell_and_the_doctor
    """
    said = execute("your_own_cluster.ipynb", tmp_path)
    assert "ignite-tf.toml is there" in said["settings"]
    assert all(re.search(rf"^{host.name} +ssh +ok", said["doctor"], re.M) for host in bed.hosts)
    found = placed_rows(said["where"])
    hosts = {host.name for host in bed.hosts}
    assert len(found) == 2 and {host for host, _, _ in found} < hosts
    assert all(share > 50 for _, _, share in found)  # both workers also read rows of the third host
    assert len(set(re.findall(r"\| on (\S+)", said["start"]))) == (2 if bed.kind is BedKind.NAMESPACES else 1)
    rows = sorted(rows for _, rows, _ in found)
    assert sum(rows) == 1797 and sorted(rows_of_mine(said["attach"])) == rows
    assert said["attach"].partition("RUN")[2].count("succeeded") == 2
