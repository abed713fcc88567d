"""A common memory limit for a group of processes, as a container sets it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryLimit:
    """A Linux control group, version 1 or 2.

    Attributes:
        folder: Directory of the group in the cgroup file system.
        is_second: Whether it is a group of version 2.
    """

    folder: Path
    is_second: bool

    def take(self, pid: int) -> None:
        """Move a process into the group. Children that it starts later belong to the group, too."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def num_killed(self) -> int:
        """The number of processes that the kernel killed for lack of memory."""
        name = "memory.events" if self.is_second else "memory.oom_control"
        counts = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(counts["oom_kill"])


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[MemoryLimit | None]:
    """Create a group with this limit, including swap; yield None if this machine does not allow that."""
    is_second = (_GROUPS / "cgroup.controllers").exists()
    folder = (_GROUPS if is_second else _GROUPS / "memory") / f"ignite-tf-test-{os.getpid()}"
    limits = (
        {"memory.max": num_bytes, "memory.swap.max": 0}
        if is_second
        else {"memory.limit_in_bytes": num_bytes, "memory.memsw.limit_in_bytes": num_bytes}
    )
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        for name, value in limits.items():
            if (folder / name).exists():
                (folder / name).write_text(str(value))
        yield MemoryLimit(folder, is_second)
    finally:
        folder.rmdir()
