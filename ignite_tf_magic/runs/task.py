"""What a worker's process is told, and what it tells when it ends. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ignite_tf_magic.launch.files import write_private

# Less noise from TensorFlow's libraries, unless the user has chosen.
DEFAULT_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}
GRACE_S = 3.0  # between SIGTERM, upon which a script may save, and SIGKILL


def is_python_script(command: Sequence[str]) -> bool:
    """Whether a command runs a file of Python code, as `python train.py`: the worker's own process then runs it."""
    program, *rest = command
    is_file = bool(rest) and rest[0].endswith(".py") and not rest[0].startswith("-")
    return program in ("python", "python3") and is_file


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What one worker's process has to do.

    Attributes:
        worker: Its index.
        script: File of the script; empty for a command.
        command: Program and arguments that run instead of a script; "python" is this interpreter.
        args: The script's arguments.
        cwd: Directory in which the script runs, and from which it may import modules; made when missing.
        copy_from: What a missing `cwd` is made a copy of; empty for nothing.
        files: Directory for the script's own output, made when missing.
        environment: Variables the script finds; None takes one away.
        exit_file: Where the process writes its `ExitReport`.
        phase_file: Where it writes what it does, of `runs.phases`.
        owner_lock: Lock that the run's owner holds; the worker ends when it is free. Empty: its shim does that.
        after_import: Functions, as "package.module:function", to be called when a module has been imported.
        claim_file: Lock of the process that takes part for this worker, of all that it starts; empty for none.
        variables_from: A function, named likewise, whose dict the script finds as variables; empty for none.
        call: A function, named likewise, that this process calls instead of running a script; empty for none.
        awaited: "host:port" of the servers, by the names of their tasks, without which the script cannot begin.
        await_timeout_s: How long it waits for them; None has no limit.
        has_peers: Whether other processes train the same model together with this one.
        tells_of_open_port: Whether it says so when its port cannot be kept to its host.
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
        """Return what `read` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> WorkerTask:
        """Read what `write` wrote."""
        known = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**known, "args": tuple(known["args"]), "command": tuple(known["command"])})


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How the script ended, in the words of the process that ran it.

    Attributes:
        exit_code: What the script asks the process to end with.
        ended_at: Seconds since the epoch; the process itself ends later.
        asked_to_end: Whether the process had been sent SIGTERM.
        exception: Name of the exception's class, None when there was none.
        traceback: The traceback as Python prints it.
    """

    exit_code: int
    started_at: float
    ended_at: float
    asked_to_end: bool = False
    exception: str | None = None
    traceback: str | None = None

    def write(self, path: Path) -> None:
        """Write the report whole."""
        write_private(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ExitReport | None:
        """Read a report; None when the process left none, as after a kill."""
        try:
            return cls.parse(path.read_bytes())
        except FileNotFoundError:
            return None

    @classmethod
    def parse(cls, content: bytes) -> ExitReport | None:
        """Read a report; None when it is none."""
        try:
            found: dict[str, Any] = json.loads(content)
        except (ValueError, RecursionError):
            return None
        return cls(**{one.name: found[one.name] for one in fields(cls) if one.name in found})
