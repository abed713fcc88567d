"""The state of a mirror, written beside the logs for other processes: the run's record, and what is not here yet."""

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

    def __str__(self) -> str:
        known = f"{self.unread_bytes:,} bytes" if self.unread_bytes else "output"
        more = ", and maybe more," if self.may_have_more and self.unread_bytes else ""
        of_log = f" of {self.log}" if self.log else ""
        return f"{known}{of_log}{more} cannot be read: host {self.host}: {self.reason}"


def workers(view: HostView) -> list[JobStatus]:
    """The jobs of a host that are workers and have a log of a name that can be kept here."""
    jobs = (job for job in view.jobs.values() if place_of(job))
    return [job for job in jobs if Path(job.log).name == job.log and job.log.endswith(".log")]


def is_given_up(view: HostView, since: float | None = None) -> bool:
    """Whether a host's output is waited for no longer: links that were lost often come back.

    Args:
        view: What is known of it.
        since: When its run ended, on the monotonic clock: a link that was lost lately may be back in a moment.
            None when it had ended before anybody asked; a host that never answered is then not waited for.
    """
    if view.contact is not Contact.UNREACHABLE:
        return False
    if since is None and view.heard_at is None:
        return True
    lost_s = time.monotonic() - view.since
    return lost_s > _LONG_S or min(lost_s, time.monotonic() - (since or 0.0)) > _PATIENCE_S


def unread(view: HostView, read_up_to: Callable[[str], int | None]) -> Iterator[UnreadOutput]:
    """List the output of a host that cannot be read now, given up to where each log was read."""
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
    """What the process that keeps a directory lets others know.

    Attributes:
        mark: Random; a host that has it in its own directory of the run has this very directory.
        pid: The process that keeps the directory; NOBODY when it has left.
        record: Stamp of the record to which the rest refers.
        done: Hosts all output of which was read, and the version of the record then.
    """

    mark: str = ""
    pid: int = field(default_factory=os.getpid)
    is_complete: bool = False
    record: Stamp = ()
    unreachable: tuple[UnreadOutput, ...] = ()
    done: Mapping[str, int] = field(default_factory=dict)

    def write(self, directory: RunDirectory) -> None:
        """Write it for others to read."""
        write_private(directory.path / STATE_FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: RunDirectory) -> MirrorState:
        """Read what was written last; nothing is complete when there is none, or another version's."""
        try:
            content = json.loads((directory.path / STATE_FILE).read_bytes())
            lost = tuple(UnreadOutput(**each) for each in content.pop("unreachable"))
            return cls(**{**content, "record": tuple(content["record"]), "unreachable": lost})
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return cls()


class MirroredRecord:
    """The record of a run in a directory: only newer ones are written. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[Stamp, int, frozenset[str]] = ((), 0, frozenset())

    def stamp(self) -> Stamp:
        """Tell one file from another that replaced it; empty when there is none."""
        try:
            return stamp_of(self._path)
        except FileNotFoundError:
            return ()

    def version(self) -> int:
        """Return the version of the record; 0 when there is none that counts versions."""
        return self._read()[1]

    def hosts(self) -> frozenset[str]:
        """Return the names of the hosts that the record knows."""
        return self._read()[2]

    def _read(self) -> tuple[Stamp, int, frozenset[str]]:
        stamp, known = self.stamp(), self._known
        if known[0] != stamp:
            record = (read_record(self._path.read_bytes()) if stamp else None) or {"version": 0}
            hosts = frozenset(str(host["name"]) for host in record.get("hosts", ()))
            self._known = known = stamp, int(record["version"]), hosts
        return known

    def offer(self, record: Mapping[str, Any]) -> None:
        """Write a record if it is newer than the one that is there."""
        with self._lock:
            if record["version"] > self.version():
                write_private(self._path, json.dumps(record, indent=1))


def read_record(content: bytes | None) -> dict[str, Any] | None:
    """Read a record; None when it is none that counts its versions."""
    try:
        found = json.loads(content or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("version")) is int else None
