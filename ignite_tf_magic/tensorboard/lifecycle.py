"""Opens, lists and stops TensorBoards. There is one for each set of log directories, independent of kernels."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import DeadlineExceeded, TensorBoardError
from ignite_tf_magic.launch.groups import ask_to_end, kill_group
from ignite_tf_magic.launch.lock import HeldLock
from ignite_tf_magic.launch.log_files import tail
from ignite_tf_magic.launch.spawner import spawn
from ignite_tf_magic.settings.options import jupyter_proxy_url
from ignite_tf_magic.tensorboard.record import STATUS_PATH, BoardDirectory, BoardSpec, TensorBoardInfo

Report = Callable[[str], None]

_POLL_S = 0.05
_TELL_AFTER_S = 2.0
_START_S = 90.0
_FIRST_LOOK_S = 3.0
_GRACE_S = 5.0
_ANSWER_S = 10.0
_LAST_LINES = 12


def open_board(spec: BoardSpec, root: Path, report: Report) -> TensorBoardInfo:
    """Find the TensorBoard that shows these sources, or start it; returns when it answers.

    It runs until it is stopped, or has had no browser request for the idle time of `spec`. If this call fails
    or is interrupted, it ends what it started.

    Args:
        spec: What to show.
        root: Directory of the records of TensorBoards; created if it does not exist.
        report: Called with a line if this takes long.

    Raises:
        TensorBoardError: TensorBoard is not installed, cannot listen at the requested address, or ended; or the
            one that shows these sources listens at another address than requested.
        DeadlineExceeded: It did not answer in time.
    """
    _check_installed()
    with _changing(root, report):
        directory = BoardDirectory(root / spec.key)
        running = _running(directory)
        if running is not None:
            _check_address(running, spec)
            return _with_notes(replace(running, reused=True), directory)
        _forget_ended(root)
        directory.create(spec)
        try:
            _spawn(directory)
            return _with_notes(_await_answer(directory, spec, report), directory)
        except BaseException:
            _end(directory)
            raise


def list_boards(root: Path) -> list[TensorBoardInfo]:
    """List the running TensorBoards, oldest first."""
    found = (_running(each) for each in _directories(root))
    return sorted((info for info in found if info), key=lambda info: info.started_at)


def stop_boards(
    root: Path, wanted: Callable[[TensorBoardInfo], bool], report: Report
) -> list[TensorBoardInfo]:
    """End the TensorBoards for which `wanted` is true; returns those that ran. Blocks until they are gone."""
    if not root.exists():
        return []
    stopped = []
    with _changing(root, report):
        for directory in _directories(root):
            info = _running(directory)
            if info is not None and wanted(info):
                _end(directory)
                directory.remove()
                stopped.append(info)
    return stopped


def _check_installed() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise TensorBoardError(
            f"TensorBoard is not installed for {sys.executable}; install it: "
            "pip install 'ignite_tf_magic[tensorboard]'"
        )


@contextmanager
def _changing(root: Path, report: Report) -> Iterator[None]:
    """Hold the lock of all TensorBoards of this user; wait while another process holds it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    told, deadline = False, time.monotonic() + _START_S + _GRACE_S
    while True:
        try:
            held = HeldLock(root / "lock")
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            if not told:
                report("waiting: another process is starting or stopping a TensorBoard")
            told = True
    with held:
        yield


def _directories(root: Path) -> list[BoardDirectory]:
    if not root.is_dir():
        return []
    return [BoardDirectory(path) for path in sorted(root.iterdir()) if (path / "spec.json").exists()]


def _running(directory: BoardDirectory) -> TensorBoardInfo | None:
    return directory.info(jupyter_proxy_url())


def _check_address(running: TensorBoardInfo, spec: BoardSpec) -> None:
    if spec.port not in {None, 0, running.port} or spec.host != running.host:
        raise TensorBoardError(
            f"a TensorBoard for these logs listens at {running.host}:{running.port} already (pid {running.pid}). "
            f"Open it without --port and --host, or stop it first: ignite-tf tensorboard --stop --port {running.port}"
        )


def _forget_ended(root: Path) -> None:
    """Remove the directories of TensorBoards that have ended."""
    for directory in _directories(root):
        if not directory.is_alive():
            directory.remove()


def _spawn(directory: BoardDirectory) -> None:
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    argv = [sys.executable, "-m", "ignite_tf_magic.tensorboard.server", str(directory.path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = spawn(
        argv, cwd=directory.path, env=env, output=directory.log
    )  # in this directory no file hides a module
    try:
        has_begun = _ends_well(process, _START_S)
    except BaseException:
        _ends_well(process, _GRACE_S)  # then the server that it started holds its lock, and can be ended
        raise
    if not has_begun:
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()
        raise TensorBoardError(f"TensorBoard could not be started; {_last_lines(directory)}")


def _ends_well(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the process that starts TensorBoard and then exits; return whether it succeeded."""
    try:
        return process.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        return False


def _await_answer(directory: BoardDirectory, spec: BoardSpec, report: Report) -> TensorBoardInfo:
    began, told = time.monotonic(), False
    while True:
        is_alive = directory.is_alive()
        info = _running(directory)
        if info is not None and _ask(info) is not None:
            return info
        if not is_alive:
            raise TensorBoardError(_why_it_ended(directory, spec))
        waited_s = time.monotonic() - began
        if waited_s > _START_S:
            raise DeadlineExceeded(
                f"TensorBoard did not answer within {_START_S:g} s and was ended; {_last_lines(directory)}"
            )
        if waited_s > _TELL_AFTER_S and not told:
            report("starting TensorBoard ...")
            told = True
        time.sleep(_POLL_S)


def _why_it_ended(directory: BoardDirectory, spec: BoardSpec) -> str:
    lines = _last_lines(directory)
    if spec.port and "already in use" in lines:
        return f"port {spec.port} is used by another program; choose another one, or none for any free port"
    if "No module named 'pkg_resources'" in lines:
        return "TensorBoard before 2.21 needs an older setuptools; install it: pip install 'setuptools<82'"
    return f"TensorBoard ended while starting; {lines}"


def _last_lines(directory: BoardDirectory) -> str:
    lines = tail(directory.log, _LAST_LINES)
    return "the last lines of its output:\n" + "\n".join(lines or ["(none)"])


def _ask(info: TensorBoardInfo) -> dict[str, Any] | None:
    """Query the status of a TensorBoard; None if it does not answer, or another program does."""
    connection = HTTPConnection(info.reachable_host, info.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", STATUS_PATH)
        answer = json.load(connection.getresponse())
    except (HTTPException, OSError, ValueError):
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) and answer.get("pid") == info.pid else None


def _with_notes(info: TensorBoardInfo, directory: BoardDirectory) -> TensorBoardInfo:
    """Add remarks for the user. Waits a few seconds for the first reading of the log directories."""
    deadline = time.monotonic() + _FIRST_LOOK_S
    while (answer := _ask(info)) is not None and answer["has_events"] is None:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    if answer is None:
        raise TensorBoardError(
            f"the TensorBoard with pid {info.pid} does not answer at {info.local_url}; {_last_lines(directory)}\n"
            f"To end it: ignite-tf tensorboard --stop --port {info.port}"
        )
    notes = list(answer["troubles"])
    if answer["has_events"] is False:
        notes.append("nothing to show yet: there are no event files; reload the page when there are some")
    if "/proxy/" in info.url and importlib.util.find_spec("jupyter_server_proxy") is None:
        notes.append("if the page stays empty: install jupyter-server-proxy where the Jupyter server runs")
    return replace(info, notes=tuple(notes))


def _end(directory: BoardDirectory) -> None:
    """End its process if it runs: send SIGTERM, wait 5 s, send SIGKILL."""
    deadline = time.monotonic() + _GRACE_S
    asked = False
    while directory.is_alive():
        pid = directory.pid()
        if pid is not None and not asked:
            ask_to_end(pid)
            asked = True
        if time.monotonic() > deadline:
            if pid is not None:
                kill_group(pid)
            deadline += _GRACE_S
        time.sleep(_POLL_S)
