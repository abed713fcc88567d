"""The record of a run: what is written down, and what others see of it.

Strict when written, tolerant when read: unknown fields of a newer version are passed over, missing ones
of an older one have defaults.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ignite_tf_magic.cluster.directory import RunDirectory
from ignite_tf_magic.cluster.states import RunEvent, RunState, after
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.files import write_private

VERSION = 1


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker of a run.

    Attributes:
        rows: Rows of its partitions.
        pid: Its process, None before it was started.
        exit_code: None while it runs; 128 + N after signal N.
        signal: Name of the signal that ended it.
        ended_at: When the script ended where it told so, else the process; seconds since the epoch.
        ended_by_owner: Whether it was ended for the run's sake, not by its own fault.
    """

    worker: int
    host: str
    rows: int = 0
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_at: float | None = None
    ended_by_owner: bool = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its owner writes it down.

    Attributes:
        generation: Counts the launches of this run's workers, from 1.
        failed_worker: The worker whose failure is shown first.
        reason: Why the run failed, where no worker can tell.
    """

    run_id: str
    cache: str
    script_name: str
    script_file: str
    python: str
    state: RunState
    started_at: float
    workers: tuple[WorkerRecord, ...]
    generation: int = 1
    ended_at: float | None = None
    exit_code: int | None = None
    failed_worker: int | None = None
    reason: str | None = None
    owner_pid: int = 0
    owner_host: str = ""

    def write(self, directory: RunDirectory) -> None:
        """Write the record whole."""
        content = {"version": VERSION, **asdict(self), "state": self.state.value}
        write_private(directory.record, json.dumps(content, indent=1))

    def with_worker(self, worker: WorkerRecord) -> RunRecord:
        """Replace what is known of one worker."""
        others = {each.worker: each for each in self.workers} | {worker.worker: worker}
        return replace(self, workers=tuple(others[index] for index in sorted(others)))

    @classmethod
    def read(cls, directory: RunDirectory) -> RunRecord:
        """Read a record.

        Raises:
            FileNotFoundError: There is no run there, or not yet.
            ValueError: The file is not a record.
        """
        found = json.loads(directory.record.read_text(encoding="utf-8"))
        try:
            workers = tuple(WorkerRecord(**_known(WorkerRecord, each)) for each in found["workers"])
            state = RunState(found["state"])
            return cls(**{**_known(cls, found), "workers": workers, "state": state})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{directory.record} is not the record of a run: {error!r}") from error


def _known(kind: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def this_process() -> dict[str, Any]:
    """Name this process as a run's owner."""
    return {"owner_pid": os.getpid(), "owner_host": socket.gethostname()}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run.

    Attributes:
        state: LOST when the process that owned the run ended before the run.
        exit_code: The run's: 0, or that of the first failing worker; None while it has none.
        hosts: Where its workers run, each once, in the order of the workers.
        restarts: How often its workers were started again.
        directory: Its files: worker-N.log, script/, files/.
        reason: Why it failed, where no worker can tell.
    """

    id: str
    state: RunState
    exit_code: int | None
    cache: str
    hosts: tuple[str, ...]
    restarts: int
    started_at: datetime
    ended_at: datetime | None
    num_workers: int
    directory: Path
    workers: tuple[WorkerRecord, ...]
    reason: str | None


def read_info(directory: RunDirectory) -> tuple[RunInfo, RunRecord]:
    """Read what is known of a run, from its directory alone.

    Raises:
        FileNotFoundError: There is no run there, or not yet.
        ValueError: Its record is damaged.
    """
    # In this order: an owner writes the last record, then lets go of the lock.
    has_owner = lock.is_held(directory.owner_lock)
    record = RunRecord.read(directory)
    state = record.state
    if not has_owner and not state.has_ended:
        state = after(state, RunEvent.OWNER_GONE)
    info = RunInfo(
        id=record.run_id,
        state=state,
        exit_code=record.exit_code,
        cache=record.cache,
        hosts=tuple(dict.fromkeys(worker.host for worker in record.workers)),
        restarts=record.generation - 1,
        started_at=_moment(record.started_at),
        ended_at=None if record.ended_at is None else _moment(record.ended_at),
        num_workers=len(record.workers),
        directory=directory.path,
        workers=record.workers,
        reason=record.reason,
    )
    return info, record


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
