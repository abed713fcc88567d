"""The interface of a process launcher, for tests that check agents with one suite.

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
    """A command to start.

    Attributes:
        argv: Program and arguments, not interpreted by a shell. Never holds a secret: any user can list it.
        env: Variables in addition to those of the host. Never holds a secret either.
        cwd: Working directory of the process; None uses the launcher's.
        stdin_text: Text on the process's standard input, which then ends; None means empty input.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: PurePath | None = None
    stdin_text: str | None = field(default=None, repr=False)


class Process(Protocol):
    """A started process, with its descendants that stay in its process group."""

    @property
    def pid(self) -> int:
        """The pid on the process's host, which is also its group id."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs. Does not block.

        Returns -N for a process ended by signal N. When this returns a code, all other processes of the
        group have been killed.
        """
        ...

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the process has ended; return its code as `poll` does, or None after the timeout."""
        ...

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM on POSIX). Does not signal its children."""
        ...

    def kill(self) -> None:
        """Kill the process and its group at once. Does nothing if it has ended."""
        ...


class Launcher(Protocol):
    """Starts processes on hosts."""

    def start(self, host: str, command: Command, output_path: PurePath) -> Process:
        """Start a process in a new process group; return without waiting for its end.

        Its standard output and error are appended, in the order in which they are written, to
        `output_path` on that host. The file is created readable by its owner only.

        Raises:
            LaunchError: The host, program or directory does not exist, or may not be used.
        """
        ...
