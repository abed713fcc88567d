"""One process at a time: a lock that the system releases when its holder ends, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock, waiting for its holder if there is one. POSIX only.

    Args:
        path: The lock file. It stays: removing it would let two processes each hold a lock of that name.
        on_wait: Called once when the lock is held elsewhere, before waiting for it. May raise.
    """
    import fcntl

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
