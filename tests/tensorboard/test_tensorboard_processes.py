"""TensorBoard processes: started once, surviving their starter, reused, listed, ended."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from ignite_tf_magic.errors import TensorBoardError
from ignite_tf_magic.launch.lock import is_held
from ignite_tf_magic.tensorboard.lifecycle import list_boards, stop_boards
from tests.alive import is_alive
from tests.tensorboard.asking import ask, until_right

OPEN = """
import sys
from pathlib import Path
from ignite_tf_magic.tensorboard.lifecycle import open_board
from ignite_tf_magic.tensorboard.record import BoardSpec, LogSource
info = open_board(BoardSpec((LogSource("run", sys.argv[2]),), cwd=sys.argv[2]), Path(sys.argv[1]), print)
print(info.pid)
"""


def test_it_outlives_its_starter_and_is_reused(show, root, tmp_path):
    argv = [sys.executable, "-c", OPEN, str(root), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    pid = int(done.stdout.splitlines()[-1])
    board = show({"run": tmp_path}, cwd=str(tmp_path))
    assert (board.pid, board.reused) == (pid, True)
    assert os.getpid() not in [parent.pid for parent in psutil.Process(pid).parents()]
    assert ask(board, "data/runs") == []
    assert [each.pid for each in list_boards(root)] == [pid]

    # Only this machine and this user have access.
    listening = [
        each.laddr for each in psutil.Process(pid).net_connections("inet") if each.status == "LISTEN"
    ]
    assert listening == [("127.0.0.1", board.port)]
    assert stat.S_IMODE(root.stat().st_mode) == stat.S_IMODE(board.log.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in board.log.parent.iterdir()} == {0o600}


def test_another_set_is_another_tensorboard_and_each_can_be_stopped(show, root, tmp_path):
    first = show({"a": tmp_path})
    second = show({"a": tmp_path, "b": tmp_path})
    assert second.pid != first.pid
    assert not second.reused
    assert [each.pid for each in list_boards(root)] == [first.pid, second.pid]
    [stopped] = stop_boards(root, lambda each: each.port == first.port, print)
    assert stopped.pid == first.pid
    assert not is_alive(first.pid)
    with pytest.raises(ConnectionRefusedError):
        ask(first, "data/runs")
    assert [each.pid for each in list_boards(root)] == [second.pid]


def test_one_that_was_killed_is_not_reused(show, root, tmp_path):
    board = show({"run": tmp_path})
    os.kill(board.pid, signal.SIGKILL)
    until_right(lambda: list_boards(root), lambda found: found == [])
    again = show({"run": tmp_path})
    assert again.pid != board.pid
    assert not again.reused


def test_it_ends_when_nobody_looks(show, root, tmp_path):
    board = show({"run": tmp_path}, idle_timeout_s=1.0)
    until_right(lambda: is_held(board.log.with_name("server.lock")), lambda is_alive: not is_alive)
    assert "not viewed for" in board.log.read_text()


def test_the_port_is_the_one_asked_for(show, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TensorBoardError, match=f"port {port} is used by another program"):
            show({"run": tmp_path}, port=port)
    assert show({"run": tmp_path}, port=port).port == port
    assert show({"run": tmp_path}, port=port).reused
    with pytest.raises(TensorBoardError, match=f"at 127.0.0.1:{port} already"):
        show({"run": tmp_path}, port=port + 1)


def test_one_that_cannot_start_says_why(show, root, tmp_path):
    with pytest.raises(TensorBoardError, match=r"ended while starting; the last lines of its output:\n\w"):
        show({"run": tmp_path}, host="192.0.2.1")
    assert list_boards(root) == []


def test_an_interrupt_ends_what_was_started(root, tmp_path):
    argv = [sys.executable, "-c", OPEN, str(root), str(tmp_path)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as starter:
        locks = until_right(lambda: list(root.glob("*/server.lock")), bool)
        starter.send_signal(signal.SIGINT)
        _, errors = starter.communicate(timeout=300)
    assert "KeyboardInterrupt" in errors
    assert not is_held(locks[0])


def test_a_hanging_one_is_told_and_can_be_stopped(show, root, tmp_path, monkeypatch):
    monkeypatch.setattr("ignite_tf_magic.tensorboard.lifecycle._ANSWER_S", 0.5)
    monkeypatch.setattr("ignite_tf_magic.tensorboard.lifecycle._GRACE_S", 0.5)
    board = show({"run": tmp_path})
    os.kill(board.pid, signal.SIGSTOP)
    with pytest.raises(TensorBoardError, match="does not answer"):
        show({"run": tmp_path})
    assert [each.pid for each in stop_boards(root, lambda _: True, print)] == [board.pid]


def test_without_tensorboard(show, root, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(TensorBoardError, match=r"pip install 'ignite_tf_magic\[tensorboard\]'"):
        show({"run": tmp_path})


def test_the_url_goes_through_a_proxy(show, root, tmp_path, monkeypatch):
    for name in ("TENSORBOARD_PROXY_URL", "JUPYTERHUB_SERVICE_PREFIX", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    board = show({"run": tmp_path})
    assert board.url == board.local_url == f"http://localhost:{board.port}/"
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    [listed] = list_boards(root)
    assert listed == replace(board, url=f"/user/me/proxy/{board.port}/", notes=())
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "https://hub/me/%PORT%/")
    assert list_boards(root)[0].url == f"https://hub/me/{board.port}/"
    assert show({"run": tmp_path}).reused
