"""What a launcher of processes on hosts is: for tests of all that agents promise by one suite, `contract`.

A launcher knows nothing of runs, workers or Ignite; a run knows nothing of how its processes are
reached. Every launcher passes the same suite, `tests/launch/contract.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Command:
    """What to start.

    Attributes:
        argv: Program and arguments; no shell reads them. Never holds a secret: any user may list it.
        env: Variables on top of those that the host gives. Never holds a secret either.
        cwd: Directory of the process; None takes the launcher's.
        stdin_text: What the process reads from its standard input, which then ends; None is an empty input.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: PurePath | None = None
    stdin_text: str | None = field(default=None, repr=False)


class Process(Protocol):
    """A started process and those that it started, as long as they stay in its group."""

    @property
    def pid(self) -> int:
        """Number of the process on its host; it is also the number of its group."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs. Does not block.

        A process ended by signal N gives -N. Whatever the process left behind in its group has been
        killed when this gives a code.
        """
        ...

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the process has ended; as `poll`, None when the time is over first."""
        ...

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM where there are signals); its children are not asked."""
        ...

    def kill(self) -> None:
        """Kill the process and its group at once. Does nothing when it has ended."""
        ...


class Launcher(Protocol):
    """Starts processes on hosts."""

    def start(self, host: str, command: Command, output_path: PurePath) -> Process:
        """Start a process in a group of its own; returns without waiting for it.

        Its standard output and error are appended, in the order in which they are written, to
        `output_path` on that host, which is created readable by its owner only.

        Raises:
            LaunchError: There is no such host, program or directory, or it may not be used.
        """
        ...
