"""Tests that a host reached by SSH keeps a process ready for a session's second run, until the session closes."""

from __future__ import annotations

import pytest

from ignite_tf_magic.runs.supervision.warm_hosts import WARM_HOSTS
from ignite_tf_magic.session import RunRequest, RunState
from tests.waiting import until

PARKED = "ignite_tf_magic.runs.parked"
SCRIPT = """
import sys
import tensorflow as tf
print("warm" if "runs.parked" in open("/proc/self/cmdline").read() else "cold", tf.constant(1).numpy(), sys.argv)
"""


def parked(host) -> list[int]:
    return [process.pid for process in host.processes() if PARKED in process.argv]


@pytest.mark.nightly
def test_the_second_run_of_a_session_starts_warm(session, bed):
    """Nightly. Shorter:
    tests/runs/supervision/test_warm_hosts.py::test_the_second_run_is_warm_and_its_scripts_see_nothing_of_it
    """

    def told() -> str:
        run = session.start_run(RunRequest("NUMBERS", SCRIPT, 1, hosts=(host.name,), warm_s=600.0))
        text = "".join(chunk.text for chunk in run.follow())
        assert run.info().state is RunState.SUCCEEDED, (text, run.failure())
        return text

    host = bed.hosts[1]
    others = [other for other in bed.hosts if other is not host]
    before = {
        other.name: set(parked(other)) for other in others
    }  # processes of another test's session, which may be ending
    try:
        cold = told()
        until(lambda: parked(host), what=host.processes)
        warm = told()
        assert "cold 1 [" in cold
        assert "warm 1 [" in warm
        assert not [each for other in others for each in set(parked(other)) - before[other.name]]
    finally:
        WARM_HOSTS.close()
    until(lambda: not parked(host), what=host.processes)
