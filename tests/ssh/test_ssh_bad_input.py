"""Tests of impossible requests: each must end with an error that names the next step, and start nothing."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ignite_tf_magic.errors import HostRefused, LaunchError, PlacementError, RecordChanged
from ignite_tf_magic.launch.jobs import Job
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.session import RunRequest, RunState, open_session
from ignite_tf_magic.session.resolve import reach_of
from tests.ssh.ssh_user import CACHE, COUNT, NUM_ROWS, another_tensorflow, changed_ssh_config

JOB = ("job", "python", "-c", "pass")


@pytest.fixture
def shell(here, elsewhere):
    (elsewhere.directory / "job").mkdir()
    return here


def test_what_is_not_there(shell):
    refusals = {
        ("start", "NUMBRES", *JOB): "no cache 'NUMBRES': did you mean 'NUMBERS'?",
        (
            "start",
            "NUMBERS",
            "nowhere",
            "python",
        ): "JOB_DIR 'nowhere' is neither a directory nor an archive; give one",
        (
            "start",
            "NUMBERS",
            "job",
        ): "missing JOB_DIR or JOB_CMD after CACHE_NAME; example: ignite-tf start",
        (
            "start",
            "--hosts",
            "bed9",
            "NUMBERS",
            *JOB,
        ): "no Ignite node runs on bed9; the hosts with nodes are bed1",
        ("attach", "nobody"): "no run 'nobody'",
        ("describe", "nobody"): "no run 'nobody'",
        ("logs", "nobody"): "no run 'nobody'",
        ("stop", "nobody"): "no run 'nobody'",
    }
    for words, told in refusals.items():
        out, err = shell(*words, code=1)
        assert err.startswith("error: ")
        assert told in err
        assert out == ""
    assert shell("ps", "--all", "--json")[0] == [] or all(
        each["cache"] == "NUMBERS" for each in shell("ps", "--all", "--json")[0]
    )


def test_a_configuration_that_says_nothing(shell):
    Path("nonsense.toml").write_text("[cluster\nwhat?")
    Path("unknown.toml").write_text('[clutser]\naddresses = ["db1"]\n')
    Path("nonsense.xml").write_text("<beans><bean class='Nothing'/></beans>")
    Path("port.toml").write_text('[cluster]\naddresses = ["db1:ten"]\n')
    for name, told in {
        "nonsense.toml": "nonsense.toml",
        "unknown.toml": "clutser",
        "nonsense.xml": "nonsense.xml",
        "port.toml": "'db1:ten' is not an Ignite address; write HOST or HOST:PORT",
        "missing.toml": "cannot read the configuration missing.toml",
    }.items():
        for command in (["ps"], ["start"], ["doctor"], ["stop"]):
            words = {"start": ["NUMBERS", *JOB], "stop": ["run"]}.get(command[0], [])
            assert told in shell(*command, "-c", name, *words, code=1)[1]


def test_archives_that_lead_out_of_their_directory(shell):
    with tarfile.open("evil.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("../evil")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"evil"))
    err = shell("start", "NUMBERS", "evil.tar.gz", "python", "-c", "pass", code=1)[1]
    assert "'../evil'" in err
    Path("text.tar.gz").write_text("no archive")
    err = shell("start", "NUMBERS", "text.tar.gz", "python", "-c", "pass", code=1)[1]
    assert "pack it with: tar czf" in err


def test_interpreters_that_do_not_do(session, bed):
    """A missing interpreter: nothing starts. One without TensorFlow: the script fails, and the user gets a hint."""
    with pytest.raises(
        LaunchError, match=r"cannot run '/nowhere/python': .* --python PATH, or .*ignite-tf doctor"
    ):
        session.start_run(RunRequest("NUMBERS", "pass", 2, python="/nowhere/python", start_timeout_s=None))
    bare = shutil.which("python3", path="/usr/bin")
    run = session.start_run(RunRequest("NUMBERS", "import tensorflow", 1, python=bare, start_timeout_s=None))
    assert run.wait(timeout_s=300).state is RunState.FAILED
    failure = run.failure()
    assert "ModuleNotFoundError: No module named 'tensorflow'" in failure.traceback
    assert "-m pip install tensorflow" in failure.hint


def test_a_host_without_ssh_gets_no_worker(bed, configure, said, tmp_path):
    """Workers on other hosts read its partitions over the network, and the user gets a warning."""
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    configure(ssh={"config": changed_ssh_config(bed, tmp_path, bed3={bed.identity: stranger})})
    script = (
        "import os; ranges = [p.split('-') for p in os.environ['IGNITE_DATASET_PART'].split(',')]\n"
        "print(sum(int(r[-1]) - int(r[0]) + 1 for r in ranges))"
    )
    with open_session(report=said.append) as session:
        run = session.start_run(RunRequest("NUMBERS", script, 2, start_timeout_s=None))
        texts = {0: "", 1: ""}
        for chunk in run.follow():
            texts[chunk.worker] += chunk.text
        record = run.record()
        with pytest.raises(PlacementError, match=r"no host can be used\. bed3: .*ssh-copy-id"):
            session.start_run(RunRequest("NUMBERS", script, 1, hosts=("bed3",)))
    (told,) = [line for line in said if "bed3" in line]
    assert told.startswith(
        "bed3 gets no worker, and its partitions are read over the network: it does not accept"
    )
    assert run.info().hosts == ("bed1", "bed2")
    assert sum(map(int, texts.values())) == 1024
    assert sum(worker.rows for worker in record.workers) == NUM_ROWS
    assert sum(seat.local_rows for seat in record.order.seats) == NUM_ROWS * 2 // 3


@pytest.mark.nightly
def test_two_owners_at_once(session, bed):
    """The lock, the registry, and the hosts themselves refuse the older owner.

    Nightly. Shorter: tests/launch/test_hosts_relay.py::test_older_generations_are_refused_with_their_facts
    """
    run = session.start_run(RunRequest("NUMBERS", COUNT, 3, start_timeout_s=None, detach=True))
    for _ in run.follow(0):
        break
    record, host = run.record(), bed.hosts[0]
    home = f"{record.host(host.name).root}/runs/{run.id}"
    second = host.run([sys.executable, "-m", "ignite_tf_magic.runs.supervision.reconciler", home])
    assert second.returncode != 0
    assert "another reconciler of run" in second.stderr

    with Registry(session.client, seal=Seal.read(run.directory)) as registry:
        seen = registry.get(run.id)
        registry.replace(seen, seen.record)
        with pytest.raises(RecordChanged, match="written by another process"):
            registry.replace(seen, {**seen.record, "supervisor": "usurper"})

    with reach_of(session.config).open(record.host(host.name)) as reached:
        assert run.info().restarts == 0
        reached.fence(run.id, 5)
        late = Job(run.id, "g1-worker-9", 1, (sys.executable, "-c", "pass"), {}, "late.log")
        with pytest.raises(HostRefused) as refused:
            reached.start(late)
        assert refused.value.kind == "stale_generation"
    assert run.stop().info.state is RunState.STOPPED


@pytest.fixture
def other_tensorflow(bed, configure):
    """Configure an interpreter of the first host whose TensorFlow version differs from the others."""
    with another_tensorflow(bed.hosts[0]) as python:
        yield configure(bed1={"python": python})


@pytest.mark.parametrize(
    "asked",
    [
        {"strategy": "async", "num_ps": 1},
        {"strategy": "standalone", "chief": "here"},
        {
            "strategy": "between",
            "num_ps": 1,
            "args": ("{ps_hosts}", "{worker_hosts}", "{job_name}", "{task_index}"),
        },
    ],
    ids=lambda asked: asked["strategy"],
)
def test_tasks_that_compute_for_each_other_have_the_same_tensorflow(other_tensorflow, asked):
    request = RunRequest(CACHE, "pass", 3, **asked)
    with open_session(report=print) as session:
        with pytest.raises(
            PlacementError, match=r"different versions of TensorFlow: 2\.15\.0 on bed1, \S+ on bed2"
        ):
            session.start_run(request)
        assert session.plan_run(replace(request, hosts=("bed2", "bed3"))).seats
        assert session.plan_run(RunRequest(CACHE, "pass", 3)).seats  # here the workers compare the versions
