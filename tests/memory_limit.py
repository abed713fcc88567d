"""A limit for the memory of some processes together, as a container has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryLimit:
    """A control group of Linux, of its first version or its second.

    Attributes:
        folder: Where its files are.
        is_second: Whether it is of the second version.
    """

    folder: Path
    is_second: bool

    def take(self, pid: int) -> None:
        """Put a process into it, and all that it will start."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def num_killed(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        name = "memory.events" if self.is_second else "memory.oom_control"
        counts = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(counts["oom_kill"])


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[MemoryLimit | None]:
    """Make a group that may take so much, swap included; None where this machine lets nobody make one."""
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
