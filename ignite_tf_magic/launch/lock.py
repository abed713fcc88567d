"""Locks that say who lives: the system releases them when their holder ends, however it ends.

A pid says less: it may have been given to another process. Standard library only; a worker imports it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

# Windows locks bytes, and locked bytes cannot be read: lock one that is far beyond the content.
_LOCKED_BYTE = 1 << 30
_WINDOWS_TRIES = 5
_LEFT_POLL_S = 0.2
_TAKE_S = 2.0  # those who ask whether a lock is held have it for a moment


class HeldLock:
    """A lock file held by this process until it is released or the process ends.

    The file holds the pid of its last holder. Children of `os.fork` do not keep the lock.

    Raises:
        BlockingIOError: It is held already.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _take(self._descriptor, path)
            pid = str(os.getpid()).encode()
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, pid)  # over the last one's, for which a full disk has room
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
        """Let go of the lock; in a forked child only of the child's handle on it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Tell whether some process, this one included, holds the lock; a missing file is not held."""
    return _with_file(path, lambda descriptor: not _lock(descriptor, shared=True, wait=False), missing=False)


def holder_pid(path: Path) -> int | None:
    """Return the process that holds the lock; None when nobody does, or it has not yet told its pid."""
    if not is_held(path):
        return None
    text = path.read_text()
    return int(text) if text.isdigit() else None


def wait_until_free(path: Path) -> None:
    """Block until nobody holds the lock, or its file is gone. Takes no processor time on POSIX."""
    _with_file(path, lambda descriptor: _lock(descriptor, shared=True, wait=True), missing=True)


def leave(path: Path, until: float) -> None:
    """Have those who wait for the holder of a lock to be gone wait on for another one, until that time.

    Args:
        path: The lock.
        until: Seconds since the epoch. The next holder takes it back.
    """
    written = path.with_name(f"{path.name}.new")
    written.write_text(repr(until))
    written.replace(_left_file(path))


def wait_until_gone(path: Path) -> None:
    """Block until nobody holds the lock, and it is not left to another holder."""
    while True:
        wait_until_free(path)
        # The next holder takes back that it was left, and holds it then.
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
            if not wait and tries >= _WINDOWS_TRIES:  # others may be asking at this moment, as we do
                return False
            time.sleep(0.01 if not wait else 0.2)
