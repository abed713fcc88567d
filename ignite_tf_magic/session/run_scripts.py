"""Reads scripts: from a file before they are sent, and from a run as they were sent."""

from __future__ import annotations

import re
import shlex
import tokenize
from pathlib import Path

from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.runs.directory import script_path
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.record import RunRecord

_CODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+", re.ASCII)  # PEP 263


def read_source(path: Path) -> str:
    """Read Python source as Python does. A coding line is changed to UTF-8, the encoding in which scripts are sent.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError, SyntaxError: The file is not text in the encoding that it declares.
    """
    with tokenize.open(path) as file:
        lines = file.read().split("\n")
    return "\n".join([*(_CODING.sub(r"\1utf-8", line) for line in lines[:2]), *lines[2:]])


def read_script(run: Run) -> str:
    """Read the source of a run's script, here or from one of its hosts.

    Raises:
        ConfigError: The run executes a command and has no script, or no host still has the script.
    """
    record = run.record()
    if record.spec.command:
        raise ConfigError(
            f"run {run.id} executes {shlex.join(record.spec.command)} in a copy of a directory, and has no script"
        )
    path = run.directory.script(record.spec.script_name)
    if path.exists():
        return path.read_text(encoding="utf-8")
    with run.reach.visiting(run.hosts()) as opened:
        answers = call_all(opened, lambda host: _read_whole(host, record))
    for answer in answers.values():
        if isinstance(answer, bytes):
            return answer.decode("utf-8")
    reasons = [
        f"{name}: {answer if isinstance(answer, IgniteTfError) else 'it has none'}"
        for name, answer in answers.items()
    ]
    raise ConfigError(
        f"the script of run {record.run_id} was not found ({'; '.join(reasons)}); start it again "
        f"from its cell, with its checkpoints: igfs:///runs/{record.run_id}/checkpoints"
    )


def _read_whole(host: Host, record: RunRecord) -> bytes | None:
    data, path = b"", script_path(record.spec.script_name)
    while piece := host.read(record.run_id, path, len(data)):
        data += piece
    return data or None
