"""Long polls, which report output, changed jobs, a raised fence or a stop request to a client at once."""

from __future__ import annotations

import binascii
import json
import os

from ignite_tf_magic.launch.agent.disk import checked_path, host_clock, open_regular
from ignite_tf_magic.launch.agent.frames import MAX_PAYLOAD_BYTES
from ignite_tf_magic.launch.agent.runs import Runs, renew

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOK_S, _CALM_LOOK_S, _CALM_AFTER_S = 0.02, 0.05, 3.0
_STATUS_LOOK_S = 0.1
_CHANGES_ALL_THE_TIME = ("beat", "log_bytes", "log_start")


class Poll:
    """One poll that waits for its answer. `due` is the time of the next look."""

    def __init__(self, runs: Runs, request: dict[str, Any], now: float) -> None:
        self.request = request
        self.is_over = True  # stays True if `look` fails
        self._runs = runs
        self._run = request["run"]
        self._logs = {path: int(offset) for path, offset in (request.get("logs") or {}).items()}
        self._parts = {path: checked_path(path) for path in self._logs}
        self._seen = request.get("seen")
        self._max_bytes = min(int(request.get("max_bytes") or MAX_PAYLOAD_BYTES), MAX_PAYLOAD_BYTES)
        self._until = now + float(request.get("wait_s") or 0.0)
        self._began_at = now
        self._open: dict[str, int] = {}
        self._directory = runs.path(self._run)
        self._status_due = now
        self.due = now
        wanted = request.get("renew")
        if wanted:
            token = min(
                float(wanted["token"]), host_clock()
            )  # a reading of the clock cannot be from the future
            renew(runs, self._run, int(wanted["generation"]), token + float(wanted["lease_s"]))

    def look(self, now: float) -> tuple[dict[str, Any], bytes] | None:
        """Return the answer if there is news or the time is over; otherwise None."""
        self.is_over = True
        has_output = any(self._size(path) > offset for path, offset in self._logs.items())
        is_late = now >= self._until
        if has_output or is_late or now >= self._status_due:
            self._status_due = now + _STATUS_LOOK_S
            state = self._state()
            if has_output or is_late or state["seen"] != self._seen:
                return self._answer(state)
        pause_s = _CALM_LOOK_S if now - self._began_at > _CALM_AFTER_S else _LOOK_S
        self.due = min(now + pause_s, self._until)
        self.is_over = False
        return None

    def close(self) -> None:
        """Close the logs."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _size(self, path: str) -> int:
        descriptor = self._descriptor(path)
        return 0 if descriptor is None else os.fstat(descriptor).st_size

    def _descriptor(self, path: str) -> int | None:
        if path not in self._open:
            try:
                descriptor = open_regular(self._directory, self._parts[path])
            except FileNotFoundError:
                descriptor = None
            if descriptor is None:
                return None
            self._open[path] = descriptor
        return self._open[path]

    def _state(self) -> dict[str, Any]:
        jobs = [status for _, status in self._runs.jobs(self._run)]
        fence, stop = self._runs.fence(self._run), self._runs.is_stop_asked(self._run)
        lasting = [{k: v for k, v in job.items() if k not in _CHANGES_ALL_THE_TIME} for job in jobs]
        seen = binascii.crc32(json.dumps([lasting, fence, stop], sort_keys=True).encode())
        return {"jobs": jobs, "fence": fence, "stop": stop, "seen": seen}

    def _answer(self, state: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        starts = self._log_starts(state["jobs"])
        gaps = []
        for path, offset in self._logs.items():
            if offset < starts.get(path, 0):
                gaps.append([path, offset, starts[path]])
                self._logs[path] = starts[path]
        pieces = self._read(self._logs)
        moved = self._log_starts([status for _, status in self._runs.jobs(self._run)]) if starts else starts
        if any(self._logs[path] < start for path, start in moved.items() if path in self._logs):
            return self._answer(self._state())  # bytes may have been freed while they were read
        logs = [[path, self._logs[path], len(data)] for path, data in pieces if data]
        return {**state, "logs": logs, "gaps": gaps}, b"".join(data for _, data in pieces)

    @staticmethod
    def _log_starts(jobs: list[dict[str, Any]]) -> dict[str, int]:
        starts: dict[str, int] = {}
        for job in jobs:
            starts[job["log"]] = max(starts.get(job["log"], 0), job["log_start"])
        return starts

    def _read(self, offsets: dict[str, int]) -> list[tuple[str, bytes]]:
        """Read a fair share of each log. What short logs leave of their share goes to longer ones."""
        sizes = {path: max(self._size(path) - offset, 0) for path, offset in offsets.items()}
        left, pieces = self._max_bytes, []
        for position, path in enumerate(sorted(sizes, key=sizes.__getitem__)):
            share = min(sizes[path], left // (len(sizes) - position))
            descriptor = self._descriptor(path)
            if share and descriptor is not None:
                pieces.append((path, os.pread(descriptor, share, offsets[path])))
                left -= len(pieces[-1][1])
        return pieces
