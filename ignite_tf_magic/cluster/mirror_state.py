"""What a mirror writes beside the logs: the run's record, and how complete the directory is, for other processes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ignite_tf_magic.cluster.directory import RunDirectory
from ignite_tf_magic.launch.files import write_private

STATE_FILE = "mirror.json"
Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Output that cannot be read.

    Attributes:
        log: None when nothing is known of what the host has.
        unread_bytes: How much of it is known to exist and was not read.
        may_have_more: Whether there may be more than that.
        reason: Why it cannot be read.
    """

    host: str
    log: str | None
    unread_bytes: int
    may_have_more: bool
    reason: str


@dataclass(frozen=True, slots=True)
class MirrorState:
    """What the process that keeps a directory lets others know.

    Attributes:
        mark: Random; a host that has it in its own directory of the run has this very directory.
        pid: The process that wrote it.
        record: Stamp of the record to which the rest refers.
        done: Hosts all output of which was read, and the version of the record then.
    """

    mark: str = ""
    pid: int = field(default_factory=os.getpid)
    is_complete: bool = False
    record: Stamp = ()
    unreachable: tuple[Unreachable, ...] = ()
    done: Mapping[str, int] = field(default_factory=dict)

    def write(self, directory: RunDirectory) -> None:
        """Write it for others to read."""
        write_private(directory.path / STATE_FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: RunDirectory) -> MirrorState:
        """Read what was written last; nothing is complete when there is none, or another version's."""
        try:
            found = json.loads((directory.path / STATE_FILE).read_bytes())
            lost = tuple(Unreachable(**each) for each in found.pop("unreachable"))
            return cls(**{**found, "record": tuple(found["record"]), "unreachable": lost})
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return cls()


class RecordFile:
    """The record of a run in a directory: only newer ones are written. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[Stamp, int] = ((), 0)

    def stamp(self) -> Stamp:
        """Tell one file from another that replaced it; empty when there is none."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def version(self) -> int:
        """Give the version of the record; 0 when there is none that counts versions."""
        stamp = self.stamp()
        if self._known[0] != stamp:
            record = read_record(self._path.read_bytes()) if stamp else None
            self._known = stamp, int(record["version"]) if record else 0
        return self._known[1]

    def offer(self, record: Mapping[str, Any]) -> None:
        """Write a record if it is newer than the one that is there."""
        with self._lock:
            if record["version"] > self.version():
                write_private(self._path, json.dumps(record, indent=1))


def read_record(content: bytes | None) -> dict[str, Any] | None:
    """Read a record; None when it is none that counts its versions."""
    try:
        found = json.loads(content or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and type(found.get("version")) is int else None
