"""Tests of `ignite-tf start`: it submits and attaches, explains, and reaches all hosts through one of them."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.ssh.ssh_user import COUNT, NUM_ROWS, by_worker, check_lines

SHOW = "import json, os; print(json.loads(os.environ['TF_CONFIG'])['task']['index'], sorted(os.listdir()), flush=True)"
# The wait before the third restart takes four seconds.
DIES_THRICE = """
import os
import re, signal
from pathlib import Path
tries = Path.home() / "tries"
with tries.open("a") as file:
    print("once", file=file)
if tries.read_text().count("once") < 4:
    os.kill(os.getpid(), signal.SIGKILL)
tries.unlink()
print("the fourth")
"""


@pytest.fixture
def job(elsewhere):
    """A directory with a program that counts."""
    directory = elsewhere.directory / "job"
    (directory / "data").mkdir(parents=True)
    (directory / "count.py").write_text(COUNT)
    (directory / "data" / "words.txt").write_text("words")
    return directory


def test_the_exit_code_is_the_runs(here, job):
    out, err = here("start", "--workers", "3", "NUMBERS", "job", "python", "-c", SHOW)
    assert by_worker(out) == {n: f"{n} ['count.py', 'data']\n" for n in range(3)}
    assert ": 3 workers on bed1, bed2, bed3, reading NUMBERS\n  its hosts supervise it" in err
    assert "succeeded" in err
    subprocess.run(["tar", "czf", "job.tar.gz", "-C", "job", "."], check=True)
    words = ("--workers", "1", "--hosts", "bed2", "NUMBERS", "job.tar.gz")
    script = "import os, sys; print(open('data/words.txt').read(), sys.argv[1:]); sys.exit(7)"
    out, err = here("start", *words, "python3", "-c", script, "--lr", "3", code=7)
    assert out == "words ['--lr', '3']\n"
    assert "exit code 7" in err
    err = here("describe", "--script", code=1)[1]
    assert re.search(r"run \S+ executes python3 -c .* in a copy of a directory, and has no script", err)


def test_explain(here, job, bed):
    words = ("NUMBERS", "job", "python", "count.py")
    table = here("start", "--workers", "3", "--explain", *words)[0]
    assert table.splitlines()[0].split()[:6] == ["HOST", "NODE", "WORKER", "PARTITIONS", "ROWS", "SHARE"]
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["100%"] * 3
    found = here("start", "--workers", "4", "--explain", "--json", *words)[0]
    assert sorted({each["host"] for each in found["workers"]}) == [host.name for host in bed.hosts]
    assert sum(each["rows"] for each in found["workers"]) == NUM_ROWS
    assert all(each["local_bytes_share"] > 0.5 for each in found["workers"])
    found = here("start", "--workers", "2", "--hosts", "bed1,bed3", "--explain", "--json", *words)[0]
    assert {each["host"] for each in found["workers"]} == {"bed1", "bed3"}
    assert sum(each["num_partitions"] for each in found["workers"]) == 1024
    assert here("ps", "--json")[0] == []


@pytest.mark.nightly
def test_why_nothing_moves_is_told(here, job):
    """Nightly. Shorter: tests/ui/test_stall_notices.py::test_a_cause_is_told_once_and_the_next_one_too"""
    (job / "dies.py").write_text(DIES_THRICE)
    out, err = here("start", "--workers", "1", "NUMBERS", "job", "python", "dies.py")
    assert out.splitlines()[-1] == "the fourth"
    assert err.count("ignite_tf_magic: the run is being started again") == 1
    assert "succeeded" in err


def test_ctrl_c_detaches(elsewhere, here, job):
    with elsewhere.start("start", "--workers", "2", "NUMBERS", "job", "python", "count.py") as started:
        started.until("line 20\n")
        started.interrupt()
        assert started.end() == 130
    (run,) = here("ps", "--json")[0]
    assert f"run {run['id']} goes on" in started.err
    assert run["state"] in ("starting", "running")
    with elsewhere.start("attach", "--json", run["id"]) as watching:
        watching.until("line 60")
        assert here("stop", run["id"], "--json")[0]["outcome"] == "stopped"
        code = watching.end()
    *lines, end = map(json.loads, watching.out.splitlines())
    assert end["state"] == "stopped"
    assert end["exit_code"] == code
    texts = {0: "", 1: ""}
    for line in lines:
        texts[line["worker"]] += line["text"]
    for text in texts.values():
        check_lines(text)
    logs = [json.loads(line) for line in elsewhere("logs", "--json", run["id"]).out.splitlines()]
    assert "".join(each["text"] for each in logs if each["worker"] == 0) == texts[0]
    assert elsewhere("logs", "-f", "--worker", "1", run["id"]).out == texts[1]


@pytest.fixture
def only_the_first(bed, namespaces):
    """Block all packets from this machine to every host but the first."""
    for host in bed.hosts[1:]:
        subprocess.run(["ip", "route", "add", "unreachable", f"{host.address}/32"], check=True)
    yield
    for host in bed.hosts[1:]:
        subprocess.run(["ip", "route", "del", "unreachable", f"{host.address}/32"], check=True)


def test_via_a_host(only_the_first, elsewhere, here, job, bed):
    others = [str(host.endpoint) for host in bed.hosts[1:]]
    elsewhere.configure(bed, cluster={"addresses": others}, ssh={"connect_timeout_s": 3})
    assert "No route to host" in here("start", "NUMBERS", "job", "python", "count.py", code=1)[1]
    assert not here("doctor", "--json", code=1)[0]["healthy"]

    assert here("doctor", "NUMBERS", "--via", "bed1", "--json")[0]["healthy"]
    words = ("start", "--via", "bed1", "--workers", "3", "NUMBERS", "job", "python", "-c", SHOW)
    out, err = here(*words)
    assert by_worker(out) == {n: f"{n} ['count.py', 'data']\n" for n in range(3)}
    run = err.partition("run ")[2].partition(":")[0]
    assert here("ps", "--all", "--via", "bed1", "--json")[0][-1]["id"] == run
    described = here("describe", run, "--via", "bed1", "--json")[0]
    assert [(each["host"], each["rows"]) for each in described["workers"]] == [
        (host.name, each["local_rows"]) for host, each in zip(bed.hosts, described["workers"], strict=True)
    ]
