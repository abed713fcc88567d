"""Tests of runs on other hosts whose owner ends: taken over while they run, or started again."""

from __future__ import annotations

import signal
import subprocess
import sys

from ignite_tf_magic.session import RunState, get_run
from tests.ssh.ssh_user import COUNT, check_lines
from tests.waiting import until

OWNER = """
import sys, time
from ignite_tf_magic.session import RunRequest, open_session
session = open_session(report=print)
run = session.start_run(RunRequest("NUMBERS", sys.argv[1], 3, start_timeout_s=None, survives_s=500.0))
print("run", run.id, flush=True)
while True:  # a signal that comes just before one long sleep would wait for its end
    time.sleep(0.1)
"""


def test_a_run_on_other_hosts_is_taken_over_stopped_and_resumed(session):
    words = [sys.executable, "-c", OWNER, COUNT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        run = get_run(next(line.split()[1] for line in owner.stdout if line.startswith("run ")))
        until_all_have(run, "line 20\n")
        pids = [worker.pid for worker in run.record().workers]
        owner.send_signal(signal.SIGINT)
        owner.wait(300)
    assert (run.info().state, run.info().left_until is None) == (RunState.RUNNING, False)

    taken = session.take_over_run(run.id)
    until_all_have(taken, "line 300\n")
    assert [worker.pid for worker in taken.record().workers] == pids
    taken.stop()
    assert taken.record().generation == 1
    assert all(check_lines(text) > 300 for text in written(taken))

    resumed = session.resume_run(run.id)
    until_all_have(resumed, "line 20\n", generation=2)
    resumed.stop()
    assert resumed.record().generation == 2
    assert all(map(check_lines, written(resumed, generation=2)))


def written(run, generation=1) -> list[str]:
    paths = [run.directory.log(worker, generation) for worker in range(3)]
    return [path.read_text() if path.exists() else "" for path in paths]


def until_all_have(run, line, generation=1) -> None:
    until(
        lambda: all(line in text for text in written(run, generation)),
        what=lambda: f"{line!r} of each worker: {written(run, generation)}",
    )
