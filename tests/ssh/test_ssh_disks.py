"""Tests of hosts with full or read-only disks: messages of a start and of the doctor, and leftover files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import RunRequest, RunState, list_runs


@pytest.mark.parametrize("detach", [True, False])
def test_a_start_on_a_full_host_is_refused_and_leaves_nothing(session, bed, namespaces, detach):
    full = bed.hosts[1]
    full.fill_disk()
    try:
        request = RunRequest("NUMBERS", "print('here')", 3, max_restarts=0, detach=detach)
        before = {run.id for run in list_runs(include_ended=True)}
        if detach:
            with pytest.raises(IgniteTfError) as caught:
                session.start_run(request)
            told = str(caught.value)
            assert "Nothing of it is left" in told
            assert {run.id for run in list_runs(include_ended=True)} == before
        else:
            run = session.start_run(request)
            assert run.wait(300).state is RunState.FAILED
            told = run.failure().summary
        assert full.name in told
        assert "the disk of" in told or "No space left on device" in told
    finally:
        full.free_disk()


@contextmanager
def read_only_state(host) -> Iterator[str]:
    """Mount a read-only disk at the package's state directory on a host; yield the directory."""
    state = f"{host.home}/{host.state}"
    host.run(["mkdir", "-p", state])
    host.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "tmpfs", state], check=True)
    try:
        yield state
    finally:
        host.run(["umount", "-l", state])


@pytest.mark.parametrize("detach", [True, False])
def test_a_start_on_a_read_only_host_is_refused_and_leaves_nothing(session, bed, namespaces, detach):
    host = bed.hosts[1]
    request = RunRequest("NUMBERS", "print('here')", 3, max_restarts=0, detach=detach)
    before = {run.id for run in list_runs(include_ended=True)}
    with read_only_state(host) as state:
        if detach:
            with pytest.raises(IgniteTfError) as caught:
                session.start_run(request)
            told = str(caught.value)
            assert "Nothing of it is left" in told
            assert {run.id for run in list_runs(include_ended=True)} == before
        else:
            with pytest.raises(IgniteTfError) as caught:
                session.start_run(request)
            told = str(caught.value)
            assert "No worker runs" in told
    assert host.name in told
    assert state in told
    assert "Read-only file system" in told
    assert "make it writable, or set root of [hosts.NAME] to another directory" in told


def test_a_worker_that_fills_its_host_says_which_disk(session, bed, namespaces):
    script = (
        "import os\n"
        "path = os.path.join(os.environ['IGNITE_TF_RUN_DIR'], 'filler')\n"
        "try:\n"
        "    with open(path, 'wb') as file:\n"
        "        while True: file.write(bytes(1 << 20)); file.flush()\n"
        "except OSError: os._exit(75)\n"
    )
    run = session.start_run(RunRequest("NUMBERS", script, 1, hosts=(bed.hosts[0].name,), max_restarts=0))
    try:
        assert run.wait(300).state is RunState.FAILED
        failure = run.failure()
        assert "exit code 75; the disk is full: " in failure.summary
        assert failure.hint.startswith("free some of the disk of ")
        assert bed.hosts[0].name in failure.hint
    finally:
        for path in bed.hosts[0].disk.rglob("filler"):
            path.unlink()


def test_the_doctor_tries_to_write(here, bed, namespaces):
    host = bed.hosts[0]
    with read_only_state(host):
        (shown, _) = here("doctor", "--json", code=1)
    (disk,) = [each for each in shown["checks"] if (each["host"], each["check"]) == (host.name, "disk")]
    assert disk["status"] == "failed"
    assert "workers cannot use" in disk["found"]
    assert "Read-only file system" in disk["found"]
    assert "make it writable" in disk["fix"]
