"""File locks that show whether a process lives: the system releases them, however their holder ends.

A pid is less reliable, because the system may reuse it. Standard library only, because workers import it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

# Windows locks bytes, and locked bytes cannot be read. So lock a byte far beyond the content.
_LOCKED_BYTE = 1 << 30
_WINDOWS_TRIES = 5
_LEFT_POLL_S = 0.2
_TAKE_S = 2.0  # `is_held` in another process takes the lock for a moment


class HeldLock:
    """A lock file held by this process until it is released or the process ends.

    The file holds the pid of its last holder. Children of `os.fork` do not keep the lock.

    Raises:
        BlockingIOError: The lock is already held.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _take(self._descriptor, path)
            pid = str(os.getpid()).encode()
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, pid)  # in place of the last pid, which works on a full disk
            os.truncate(self._descriptor, len(pid))
            _left_file(path).unlink(missing_ok=True)
        except BaseException:
            self.release()
            raise
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.release)

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. In a forked child, this closes only the child's handle."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether any process, this one included, holds the lock. A missing file is not held."""
    return _with_file(path, lambda descriptor: not _lock(descriptor, shared=True, wait=False), missing=False)


def holder_pid(path: Path) -> int | None:
    """Return the pid of the lock's holder, or None if the lock is free or the pid not yet written."""
    if not is_held(path):
        return None
    text = path.read_text()
    return int(text) if text.isdigit() else None


def wait_until_free(path: Path) -> None:
    """Block until the lock is free or its file is gone. Takes no processor time on POSIX."""
    _with_file(path, lambda descriptor: _lock(descriptor, shared=True, wait=True), missing=True)


def leave(path: Path, until: float) -> None:
    """Mark a lock as handed over: `wait_until_gone` keeps waiting for a new holder until then.

    Args:
        path: The lock.
        until: Seconds since the epoch. The next holder removes the mark.
    """
    written = path.with_name(f"{path.name}.new")
    written.write_text(repr(until))
    written.replace(_left_file(path))


def wait_until_gone(path: Path) -> None:
    """Block until the lock is free and no longer marked as handed over."""
    while True:
        wait_until_free(path)
        # The next holder takes the lock before it removes the mark, so look at the mark first.
        if time.time() > _left_until(path) and not is_held(path):
            return
        time.sleep(_LEFT_POLL_S)


def _left_until(path: Path) -> float:
    try:
        return float(_left_file(path).read_text())
    except (OSError, ValueError):
        return float("-inf")


def _left_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.left")


def _with_file(path: Path, action: Callable[[int], bool], *, missing: bool) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return missing
    try:
        return action(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _TAKE_S
    while not _lock(descriptor, shared=False, wait=False):
        if time.monotonic() > deadline:
            raise BlockingIOError(f"{path} is locked by another process")
        time.sleep(0.01)


def _lock(descriptor: int, *, shared: bool, wait: bool) -> bool:
    if sys.platform == "win32":
        return _lock_windows(descriptor, wait)
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_windows(descriptor: int, wait: bool) -> bool:
    import msvcrt

    tries = 0
    while True:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            os.lseek(descriptor, 0, os.SEEK_SET)
            return True
        except OSError:
            tries += 1
            if not wait and tries >= _WINDOWS_TRIES:  # another `is_held` may hold it for a moment
                return False
            time.sleep(0.01 if not wait else 0.2)
