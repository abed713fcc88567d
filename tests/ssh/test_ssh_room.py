"""Tests of runs that need GPUs or ports held by other runs: refused with a reason, or queued."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ignite_tf_magic.errors import NoRoom, PlacementError
from ignite_tf_magic.session import RunRequest, RunState, list_runs, open_session, stop_run
from tests.bed.fake_gpus import make_nvidia_smi
from tests.ssh.ssh_user import CACHE

SHOW = "import os, time\nprint(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"
HOLD = SHOW + "time.sleep(300)\n"


@pytest.fixture
def gpus(bed, namespaces) -> Iterator[None]:
    """Simulate one GPU on the first host and one on the second."""
    for number, host in enumerate(bed.hosts):
        make_nvidia_smi(host.disk / "bin", int(number < 2))
        (host.disk / ".bashrc").write_text('export PATH="$HOME/bin:$PATH"\n')
    yield
    for host in bed.hosts:
        (host.disk / "bin/nvidia-smi").unlink()
        (host.disk / ".bashrc").unlink()


@pytest.fixture(autouse=True)
def no_run_is_left(home) -> Iterator[None]:
    """Stop all runs after each test, also after a failure."""
    yield
    for run in list_runs().runs:
        stop_run(run.id)


def await_lines(run, num_workers: int) -> dict[int, str]:
    """Follow a run until each worker has printed a line."""
    seen = dict.fromkeys(range(num_workers), "")
    for chunk in run.follow():
        seen[chunk.worker] += chunk.text
        if all(text.endswith("\n") for text in seen.values()):
            return seen
    raise AssertionError((seen, run.failure()))


@pytest.mark.nightly
def test_gpus_are_waited_for(session, elsewhere, gpus, said):
    """Nightly. Shorter:
    tests/runs/hosts/test_capacity.py::test_a_queued_run_starts_when_there_is_room_and_can_be_stopped_before
    """

    def start(script, **options):
        return session.start_run(RunRequest(CACHE, script, 2, num_gpus=1, start_timeout_s=None, **options))

    holder = start(HOLD)
    assert await_lines(holder, 2) == {0: "0\n", 1: "0\n"}
    assert holder.info().hosts == ("bed1", "bed2")
    held = re.escape(f"(held by run {holder.id}: GPU 0)")
    reason = f"bed1: 0 of 1 GPUs free {held}; bed2: 0 of 1 GPUs free {held}; bed3: no GPUs .*--wait"
    with pytest.raises(NoRoom, match=reason):
        start(SHOW)
    with pytest.raises(PlacementError, match="2 workers with 2 GPUs each never fit: bed1: .* Request fewer"):
        session.start_run(RunRequest(CACHE, SHOW, 2, num_gpus=2, wait=True))
    assert said == []

    waiting = [start(SHOW, wait=True, detach=detach) for detach in (False, True, True)]
    assert len(said) == 3
    assert said[0].startswith("the run is queued: 2 workers with 1 GPU each do not fit now: bed1: 0 of 1")
    listed = {each["id"]: each for each in elsewhere.json("ps")}
    assert {each["state"] for run_id, each in listed.items() if run_id != holder.id} == {"queued"}
    assert listed.keys() == {run.id for run in (holder, *waiting)}
    attached, detached, given_up = waiting
    assert holder.id in listed[detached.id]["waiting_for"]
    stopped = elsewhere.json("stop", given_up.id)
    assert (stopped["state"], stopped["outcome"]) == ("stopped", "stopped")

    holder.stop()
    for run in (attached, detached):
        info = run.wait(timeout_s=300)
        assert info.state is RunState.SUCCEEDED, run.failure()
        assert info.hosts == ("bed1", "bed2")
        assert {chunk.text for chunk in run.follow() if "---" not in chunk.text} == {"0\n"}
    assert attached.info().ended_at < detached.info().ended_at  # it was queued first


@pytest.mark.nightly
def test_a_range_of_ports_for_one_run(configure, said):
    """Nightly. Shorter:
    tests/runs/hosts/test_capacity.py::test_in_a_range_for_one_run_the_second_is_refused_and_told_by_whom
    """
    configure(launch={"ports": "41000-41001"})
    request = RunRequest(CACHE, HOLD, 2, hosts=("bed1",), start_timeout_s=None)
    with open_session(report=said.append) as session:
        holder = session.start_run(request)
        await_lines(holder, 2)
        held = rf"\(held by run {holder.id}: port 4100[01], port 4100[01]\)"
        reason = rf"2 workers do not fit now: bed1: 0 of the ports 41000-41001 .* free {held}.*--wait"
        with pytest.raises(NoRoom, match=reason):
            session.start_run(request)
        with pytest.raises(PlacementError, match=r"3 workers never fit: bed1: 0 of the ports 41000-41001"):
            session.start_run(RunRequest(CACHE, HOLD, 3, hosts=("bed1",)))
        holder.stop()
        again = session.start_run(RunRequest(CACHE, SHOW, 2, hosts=("bed1",), start_timeout_s=None))
        assert again.wait(timeout_s=300).state is RunState.SUCCEEDED, again.failure()
