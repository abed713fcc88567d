from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import pytest

from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.lock import HeldLock

HOLD = """
import sys, time
from pathlib import Path
from ignite_tf_magic.launch.lock import HeldLock
held = HeldLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_missing_file_is_not_held(path):
    assert not lock.is_held(path)
    assert lock.holder_pid(path) is None
    lock.wait_until_free(path)


def test_held_by_this_process_until_released(path):
    with HeldLock(path):
        assert lock.is_held(path)
        assert lock.holder_pid(path) == os.getpid()
    assert not lock.is_held(path)
    assert lock.holder_pid(path) is None


def test_held_by_another_process_until_it_is_killed(path, holder):
    assert lock.holder_pid(path) == holder.pid
    with pytest.raises(BlockingIOError):
        HeldLock(path)
    assert lock.holder_pid(path) == holder.pid
    holder.kill()
    lock.wait_until_free(path)
    assert not lock.is_held(path)


def test_waiting_ends_when_the_holder_dies(path, holder):
    waiting = threading.Thread(target=lock.wait_until_free, args=(path,))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    holder.kill()
    waiting.join(300)
    assert not waiting.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_lock(path):
    held = HeldLock(path)
    to_child, to_parent = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork warns about threads of other tests
        child = os.fork()
    if child == 0:
        os.write(to_parent[1], b"x")
        os.read(to_child[0], 1)
        os._exit(0)
    os.read(to_parent[0], 1)
    assert lock.is_held(path)
    held.release()
    try:
        assert not lock.is_held(path)
    finally:
        os.write(to_child[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*to_child, *to_parent):
            os.close(descriptor)


def test_those_who_ask_do_not_keep_it_from_being_taken(path):
    HeldLock(path).release()
    done = threading.Event()

    def ask():
        while not done.is_set():
            lock.is_held(path)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(20):
            HeldLock(path).release()
    finally:
        done.set()
        for asker in askers:
            asker.join()
