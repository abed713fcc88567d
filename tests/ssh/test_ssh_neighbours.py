"""Tests that another real account, on the hosts and on the user's machine, can neither read nor change a run."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.runs.directory import CREDENTIALS
from ignite_tf_magic.session import RunRequest, RunState, open_session
from tests.ssh.ssh_user import PASSWORD, settings

NEIGHBOUR_ID = 54321
AS_NEIGHBOUR = ("setpriv", f"--reuid={NEIGHBOUR_ID}", f"--regid={NEIGHBOUR_ID}", "--clear-groups")
WAIT = "import time\nprint('at work', flush=True)\ntime.sleep(600)\n"
# Lists, one fact per line, what an account can read and write below a home, read of processes, and kill.
TRY = """
find {home} -type f -readable -printf 'reads %P\\n' 2>/dev/null
find {home} -type f -printf 'lists %P\\n' 2>/dev/null
find {home} -writable -printf 'writes %P\\n' 2>/dev/null
for each in /proc/[0-9]*; do
    if grep -aqs IGNITE_TF_JOB= $each/environ; then echo reads environ; fi
    if tr '\\0' ' ' < $each/cmdline | grep -qF {password}; then echo password; fi
done
for pid in {pids}; do if kill -0 $pid; then echo ends $pid; fi; done
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def open_homes(bed, namespaces):
    """Make home directories that others may enter and list, as on some systems."""
    for host in bed.hosts:
        host.disk.chmod(0o755)
    yield
    for host in bed.hosts:
        host.disk.chmod(0o700)


def tried(host, account: tuple[str, ...]) -> set[str]:
    pids = [str(process.pid) for process in host.processes() if process.marker]
    assert pids
    # The password is split, so that the search does not find its own command line.
    half = len(PASSWORD) // 2
    script = TRY.format(
        home=shlex.quote(host.home), password=f"{PASSWORD[:half]}''{PASSWORD[half:]}", pids=" ".join(pids)
    )
    return set(host.run([*account, "sh", "-c", script]).stdout.splitlines())


def test_an_account_on_a_host_reads_writes_and_ends_nothing_of_a_run(trusted, open_homes, home, bed):
    with open_session(report=print) as session:
        run = session.start_run(RunRequest("NUMBERS", WAIT, 3, start_timeout_s=None, detach=True))
        lines = (chunk.text for chunk in run.follow())
        assert [next(lines) for _ in range(3)] == ["at work\n"] * 3
        for host in bed.hosts:
            own, of_others = tried(host, ()), tried(host, AS_NEIGHBOUR)
            ours = {each for each in own if run.id in each}
            assert any(each.startswith("reads ") and each.endswith(CREDENTIALS) for each in ours)
            assert any(each.startswith("ends ") for each in own)
            assert "reads environ" in own
            assert not [each for each in of_others if run.id in each or "agents" in each]
            assert not [each for each in of_others if not each.startswith(("reads ", "lists "))]
            assert "reads environ" not in of_others
        assert run.info().state is RunState.RUNNING
        run.stop()


@pytest.fixture
def shared(monkeypatch):
    """Let the user work in a world-writable directory."""
    with tempfile.TemporaryDirectory(prefix="shared-") as name:
        Path(name).chmod(0o1777)
        monkeypatch.chdir(name)
        yield Path(name)


def test_a_configuration_that_a_neighbour_left_is_not_used(home, bed, shared, elsewhere):
    left = shared / "ignite-tf.toml"
    left.write_text(settings(bed, launch={"python": "/tmp/evil"}))
    os.chown(left, NEIGHBOUR_ID, NEIGHBOUR_ID)
    with pytest.raises(ConfigError, match=f"{left} is another user's.*-c {left}"):
        open_session(report=print)
    elsewhere.directory = shared
    assert f"{left} is another user's" in elsewhere("ps", code=1).err


def test_a_directory_of_runs_that_a_neighbour_made_is_not_used(configure, namespaces, bed, said):
    """The path of the runs directory is predictable, so a neighbour creates it first. Workers then run elsewhere."""
    made = [host.disk / "made-before" for host in bed.hosts]
    for path in made:
        path.mkdir()
        os.chown(path, NEIGHBOUR_ID, NEIGHBOUR_ID)
    configure(**{host.name: {"root": f"{host.home}/made-before"} for host in bed.hosts})
    try:
        with open_session(report=said.append) as session:
            run = session.start_run(RunRequest("NUMBERS", "pass", 3))
            assert run.wait().state is RunState.SUCCEEDED
        for host in bed.hosts:
            assert any(f"other users can write to '{host.home}/made-before'" in each for each in said), said
        assert not [each for path in made for each in path.iterdir()]
    finally:
        for path in made:
            path.rmdir()
