from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.embedded.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from ignite_tf_magic.embedded.lock import locked
with locked(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    time.sleep(60)
"""


class Refused(Exception):
    pass


def refuse() -> None:
    raise Refused


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_free_lock_is_taken_without_waiting(tmp_path: Path):
    for _ in range(2):
        with locked(tmp_path / "lock", refuse):
            pass


def test_who_comes_second_is_told_before_waiting(tmp_path, holder):
    with pytest.raises(Refused), locked(tmp_path / "lock", refuse):
        pass


def test_a_killed_holder_lets_go(tmp_path, holder):
    told = []

    def kill_it():
        told.append("waits")
        os.kill(holder.pid, signal.SIGKILL)

    with locked(tmp_path / "lock", kill_it):
        assert told == ["waits"]
