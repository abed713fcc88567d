"""Tests of three hosts that share a home directory, as over NFS: each must only touch its own processes and files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ignite_tf_magic.session import RunRequest, RunState
from tests.bed.bed import Bed, BedKind
from tests.ssh.ssh_user import CACHE, load_numbers
from tests.waiting import until

WHERE = "import socket; print('on', socket.gethostname())"
WAIT = f"{WHERE}; import time; print('waits', flush=True); time.sleep(600)"
FAIL = f"{WHERE}; raise SystemExit(3)"


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Iterator[Bed]:
    """A separate bed, which replaces the shared bed of this directory."""
    if BedKind.best() is not BedKind.NAMESPACES:
        pytest.skip("hosts that share a home need namespaces")
    with Bed.up(root_dir=tmp_path_factory.mktemp("shared"), shared_home=True) as made:
        yield made


@pytest.fixture(scope="module")
def data(bed) -> str:
    load_numbers(bed)
    return CACHE


def start(session, code: str, detach: bool):
    return session.start_run(RunRequest(CACHE, code, 3, start_timeout_s=None, detach=detach))


def words(run) -> dict[int, str]:
    text = dict.fromkeys(range(3), "")
    for chunk in run.follow():
        text[chunk.worker] += chunk.text
    return text


def wait_for_all(run) -> None:
    """Wait until the run is running."""
    until(lambda: run.info().state is RunState.RUNNING, what=lambda: str(run.info()))


def directories(bed, run_id: str) -> list[str]:
    """Return the names of the hosts that have a directory of the run in the shared home."""
    return sorted(
        path.parts[-3] for path in bed.hosts[0].disk.glob(f".local/state/ignite_tf_magic/*/runs/{run_id}")
    )


@pytest.mark.parametrize("detach", [False, True], ids=["attached", "detached"])
class TestRuns:
    def test_one_that_succeeds(self, session, bed, detach):
        run = start(session, WHERE, detach)
        assert words(run) == {i: f"on {host.name}\n" for i, host in enumerate(bed.hosts)}
        assert run.info().state is RunState.SUCCEEDED
        assert directories(bed, run.id) == [host.name for host in bed.hosts]

    def test_one_that_fails(self, session, detach):
        run = start(session, FAIL, detach)
        run.wait(60)
        assert run.info().state is RunState.FAILED
        assert "exit code 3" in str(run.failure())

    def test_one_that_is_stopped(self, session, detach):
        run = start(session, WAIT, detach)
        wait_for_all(run)
        run.stop()
        run.wait(60)
        assert run.info().state is RunState.STOPPED

    @pytest.mark.nightly
    def test_one_whose_host_loses_power(self, session, bed, detach):
        """Nightly. Shorter: test_one_that_fails"""
        run = start(session, WAIT, detach)
        wait_for_all(run)
        victim = bed.hosts[2]
        victim.power_off()
        try:
            until(
                lambda: run.info().state is not RunState.RUNNING, timeout_s=180, what=lambda: str(run.info())
            )
        finally:
            victim.power_on()
            victim.await_sshd()
            victim.await_node(3)
        until(lambda: run.info().state is RunState.RUNNING, timeout_s=180, what=lambda: str(run.info()))
        assert run.info().restarts == 1
        run.stop()
        assert run.wait(60).state is RunState.STOPPED


def test_the_files_of_hosts_lie_beside_each_other(session, bed):
    run = start(session, WHERE, detach=False)
    words(run)
    state = bed.hosts[0].disk / ".local/state/ignite_tf_magic"
    assert {path.name: (path / "host").read_text() for path in state.iterdir()} == {
        host.name: host.name for host in bed.hosts
    }
