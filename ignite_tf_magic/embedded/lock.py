"""A file lock between processes. The system releases it when its holder ends, even by a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock; wait while another process holds it. POSIX only.

    Args:
        path: The lock file. It is not removed: otherwise two processes could each hold a lock of that name.
        on_wait: Called once before waiting, if another process holds the lock. May raise.
    """
    import fcntl

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
