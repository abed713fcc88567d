"""The task file that a worker's process reads at its start, and the report that it writes at its end.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ignite_tf_magic.launch.files import write_private

# Reduces log output of TensorFlow's libraries, unless the user has set these variables.
DEFAULT_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}
GRACE_S = 3.0  # between SIGTERM, which lets a script save, and SIGKILL


def is_python_script(command: Sequence[str]) -> bool:
    """Return whether a command is like `python train.py`. The worker's own process then runs the file."""
    program, *rest = command
    is_file = bool(rest) and rest[0].endswith(".py") and not rest[0].startswith("-")
    return program in ("python", "python3") and is_file


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The task of one worker's process.

    Attributes:
        worker: Index of the worker.
        script: File of the script; empty for a command.
        command: Program and arguments that run instead of a script; "python" is this interpreter.
        args: The script's arguments.
        cwd: Directory in which the script runs and from which it may import modules; created if missing.
        copy_from: Directory to copy to a missing `cwd`; empty creates an empty directory.
        files: Directory for the script's own output; created if missing.
        environment: Variables for the script; None removes a variable.
        exit_file: Where the process writes its `ExitReport`.
        phase_file: Where the process writes its current phase, of `runs.phases`.
        owner_lock: Lock that the run's owner holds; the worker ends when it is released. If empty, the worker's shim
            ends the worker instead.
        after_import: Functions, as "package.module:function", to be called after the import of a module, by module.
        claim_file: Training lock: of all processes that the worker starts, the one that holds this lock takes part in
            the training. Empty for none.
        variables_from: A function in the same notation. It returns the script's predefined variables as a dict. Empty
            for none.
        call: A function in the same notation, which this process calls instead of running a script; empty for none.
        awaited: "host:port" of the servers that the script needs before it starts, by task name.
        await_timeout_s: Time limit for waiting for these servers; None has no limit.
        has_peers: Whether other processes train the same model together with this one.
        tells_of_open_port: Whether the process warns if other machines can reach its port.
    """

    worker: int
    script: str
    args: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str | None]
    exit_file: str
    files: str
    owner_lock: str = ""
    command: tuple[str, ...] = ()
    copy_from: str = ""
    after_import: Mapping[str, str] = field(default_factory=dict)
    variables_from: str = ""
    claim_file: str = ""
    phase_file: str = ""
    call: str = ""
    awaited: Mapping[str, str] = field(default_factory=dict)
    await_timeout_s: float | None = None
    has_peers: bool = False
    tells_of_open_port: bool = False

    def to_text(self) -> str:
        """Return the content of a task file, for `read`."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> WorkerTask:
        """Read a task file."""
        known = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**known, "args": tuple(known["args"]), "command": tuple(known["command"])})


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How the script ended, as reported by the process that ran it.

    Attributes:
        exit_code: The exit code that the script requested.
        ended_at: When the script ended, in seconds since the epoch; the process ends later.
        asked_to_end: Whether the process had received SIGTERM.
        exception: Name of the exception's class; None without an exception.
        traceback: The traceback as Python prints it.
    """

    exit_code: int
    started_at: float
    ended_at: float
    asked_to_end: bool = False
    exception: str | None = None
    traceback: str | None = None

    def write(self, path: Path) -> None:
        """Write the report to a file atomically."""
        write_private(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ExitReport | None:
        """Read a report, or return None if the process left none, as after a kill."""
        try:
            return cls.parse(path.read_bytes())
        except FileNotFoundError:
            return None

    @classmethod
    def parse(cls, content: bytes) -> ExitReport | None:
        """Read a report from bytes, or return None if they are not a report: a script may write anything there."""
        try:
            found: dict[str, Any] = json.loads(content)
            report = cls(**{one.name: found[one.name] for one in fields(cls) if one.name in found})
        except (ValueError, RecursionError, TypeError):
            return None
        times, texts = (report.started_at, report.ended_at), (report.exception, report.traceback)
        is_report = (
            isinstance(report.exit_code, int)
            and all(isinstance(each, int | float) for each in times)
            and all(isinstance(each, str | None) for each in texts)
        )
        return report if is_report else None
