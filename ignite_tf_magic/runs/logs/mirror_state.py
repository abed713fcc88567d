"""The state of a mirror, stored beside the logs for other processes: the record's stamp, and what is missing here."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ignite_tf_magic.launch.files import stamp_of, write_private
from ignite_tf_magic.launch.jobs import JobStatus
from ignite_tf_magic.launch.watch import Contact, HostView
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.orders import place_of

STATE_FILE = "mirror.json"
NOBODY = 0
_PATIENCE_S = 10.0
_LONG_S = 60.0
Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnreadOutput:
    """Output that cannot be read.

    Attributes:
        log: Name of the log; None if nothing is known of the host's logs.
        unread_bytes: Number of bytes that are known to exist but were not read.
        may_have_more: Whether there may be more.
        reason: Why the output cannot be read.
    """

    host: str
    log: str | None
    unread_bytes: int
    may_have_more: bool
    reason: str

    def __str__(self) -> str:
        known = f"{self.unread_bytes:,} bytes" if self.unread_bytes else "output"
        more = ", and maybe more," if self.may_have_more and self.unread_bytes else ""
        of_log = f" of {self.log}" if self.log else ""
        return f"{known}{of_log}{more} cannot be read: host {self.host}: {self.reason}"


def workers(view: HostView) -> list[JobStatus]:
    """Return a host's jobs that are workers and whose log has a name that is valid here."""
    jobs = (job for job in view.jobs.values() if place_of(job))
    return [job for job in jobs if Path(job.log).name == job.log and job.log.endswith(".log")]


def is_given_up(view: HostView, since: float | None = None) -> bool:
    """Return whether to stop waiting for a host's output. A link lost recently gets time, because links often recover.

    Args:
        view: The watch's view of the host.
        since: When the run ended, on the monotonic clock; a link lost around that time may be back in a moment. None if
            the run had ended before this process looked; a host that has never answered is then given up at once.
    """
    if view.contact is not Contact.UNREACHABLE:
        return False
    if since is None and view.heard_at is None:
        return True
    lost_s = time.monotonic() - view.since
    return lost_s > _LONG_S or min(lost_s, time.monotonic() - (since or 0.0)) > _PATIENCE_S


def unread(view: HostView, read_up_to: Callable[[str], int | None]) -> Iterator[UnreadOutput]:
    """Yield the output of a host that cannot be read now, given how far each log was read."""
    if view.contact is not Contact.UNREACHABLE and view.sink_error is None:
        return
    reason = view.sink_error or view.error or "it does not answer"
    if view.heard_at is None:
        yield UnreadOutput(view.host, None, 0, True, reason)
    for job in workers(view):
        missing = max(job.log_bytes - (read_up_to(job.log) or 0), 0)
        if missing or not job.has_ended:
            yield UnreadOutput(view.host, job.log, missing, not job.has_ended, reason)


@dataclass(frozen=True, slots=True)
class MirrorState:
    """What the process that keeps a directory tells other processes.

    Attributes:
        mark: Random text. A host whose directory of the run contains it uses this same directory.
        pid: The process that keeps the directory; NOBODY after it has released it.
        record: Stamp of the record to which the other fields refer.
        done: Version of the record at which all output of a host had been read, by host.
    """

    mark: str = ""
    pid: int = field(default_factory=os.getpid)
    is_complete: bool = False
    record: Stamp = ()
    unreachable: tuple[UnreadOutput, ...] = ()
    done: Mapping[str, int] = field(default_factory=dict)

    def write(self, directory: RunDirectory) -> None:
        """Write the state for other processes."""
        write_private(directory.path / STATE_FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: RunDirectory) -> MirrorState:
        """Read the latest state; an empty one if there is none or it has another version's format."""
        try:
            content = json.loads((directory.path / STATE_FILE).read_bytes())
            lost = tuple(UnreadOutput(**each) for each in content.pop("unreachable"))
            return cls(**{**content, "record": tuple(content["record"]), "unreachable": lost})
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return cls()


class MirroredRecord:
    """The record of a run in a directory, which is only replaced by newer ones. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[Stamp, int, frozenset[str]] = ((), 0, frozenset())

    def stamp(self) -> Stamp:
        """Return a value that changes if the record's file is replaced; empty if there is none."""
        try:
            return stamp_of(self._path)
        except FileNotFoundError:
            return ()

    def version(self) -> int:
        """Return the version of the record; 0 if there is no record with a version."""
        return self._read()[1]

    def hosts(self) -> frozenset[str]:
        """Return the names of the hosts in the record."""
        return self._read()[2]

    def _read(self) -> tuple[Stamp, int, frozenset[str]]:
        stamp, known = self.stamp(), self._known
        if known[0] != stamp:
            record = (read_record(self._path.read_bytes()) if stamp else None) or {"version": 0}
            hosts = frozenset(str(host["name"]) for host in record.get("hosts", ()))
            self._known = known = stamp, int(record["version"]), hosts
        return known

    def offer(self, record: Mapping[str, Any]) -> None:
        """Write a record if it is newer than the existing one."""
        with self._lock:
            if record["version"] > self.version():
                write_private(self._path, json.dumps(record, indent=1))


def read_record(content: bytes | None) -> dict[str, Any] | None:
    """Parse a record; return None if it is not a record with a version."""
    try:
        found = json.loads(content or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("version")) is int else None
