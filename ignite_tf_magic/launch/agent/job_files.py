"""The directory of one job, through which relays and shims communicate: its request, its status and its end."""

from __future__ import annotations

import json
import os
import signal
import time

from ignite_tf_magic.launch.agent.disk import (
    PADDED_BYTES,
    FileLock,
    host_clock,
    read_json,
    read_padded,
    refusal,
    write_padded,
    write_whole,
)
from ignite_tf_magic.launch.agent.processes import (
    KEEPER_MARK,
    environment_has,
    kill_marked,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LEASE_BYTES = 32
FENCE_BYTES = 20


class JobFiles:
    """Reads and writes the files of one job.

    The file `lock` is locked from before the directory gets its name until the last process of the shim has ended. A
    free lock means that no process of a shim lives, whatever the other files say.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._request: dict[str, Any] | None = None
        self._exit: dict[str, Any] | None = None
        self._lease = self._end = self._fence = -1

    def file(self, name: str) -> str:
        """Return the path of one of the job's files."""
        return f"{self.path}/{name}"

    @property
    def request(self) -> dict[str, Any]:
        """The start request and what the relay added: nonce, host, boot, GPUs. Empty if the file is damaged."""
        if self._request is None:
            self._request = read_json(self.file("job.json"), 64 << 20) or {}
        return self._request

    @property
    def run_path(self) -> str:
        """The directory of the job's run."""
        return os.path.dirname(os.path.dirname(self.path))

    def lay_out(self, request: dict[str, Any], deadline: float | None) -> None:
        """Create all files at their full size, so that a full disk cannot keep the job from ending."""
        write_whole(self.file("job.json"), json.dumps(request).encode())
        for name, size in (("end", PADDED_BYTES), ("exit.part", PADDED_BYTES), ("lease", _LEASE_BYTES)):
            write_whole(self.file(name), b" " * size)
        self._write_lease(deadline)
        self.write_status(first_status(request))

    # --- status -----------------------------------------------------------------------------------------------

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status in place."""
        write_padded(self.file("status.json"), status)

    def status(self) -> dict[str, Any]:
        """Return the status as the shim last wrote it."""
        return read_padded(self.file("status.json")) or first_status(self.request)

    def finish(self, status: dict[str, Any]) -> None:
        """Record how the job ended. Only the first record counts."""
        status = {**status, "state": "ended", "ended_at": time.time(), "pid": None}
        if not os.path.exists(self.file("exit.json")):
            self.write_status(status)
            write_padded(self.file("exit.part"), status)
            os.rename(self.file("exit.part"), self.file("exit.json"))

    def exit(self) -> dict[str, Any] | None:
        """Return how the job ended, or None while that is not recorded."""
        if self._exit is None:
            self._exit = read_padded(self.file("exit.json"))
        return self._exit

    # --- requests to the shim ---------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return the time on this host's clock at which the lease ends, or None if there is no lease."""
        self._lease = self._kept_open(self._lease, self.file("lease"))
        try:
            return float(os.pread(self._lease, _LEASE_BYTES, 0))
        except ValueError:
            return None

    def renew(self, deadline: float) -> None:
        """Extend the lease to a deadline. Never shortens it, and never adds a lease to a job without one."""
        with FileLock(self.file("lease")):
            now = self.deadline()
            self.close()  # a relay has many jobs, and must not keep the files of all open
            if now is not None and deadline > now:
                self._write_lease(deadline)

    def set_deadline(self, deadline: float) -> None:
        """Set the lease's deadline, later or earlier, if the job has a lease."""
        with FileLock(self.file("lease")):
            now = self.deadline()
            self.close()
            if now is not None:
                self._write_lease(deadline)

    def _write_lease(self, deadline: float | None) -> None:
        text = "none" if deadline is None else f"{deadline:.6f}"
        descriptor = os.open(self.file("lease"), os.O_WRONLY)
        try:
            os.pwrite(descriptor, text.ljust(_LEASE_BYTES).encode(), 0)
        finally:
            os.close(descriptor)

    def ask_to_end(self, grace_s: float, reason: str) -> None:
        """Ask the shim to end the job."""
        write_padded(self.file("end"), {"grace_s": grace_s, "reason": reason, "at": host_clock()})
        self.wake()

    def asked_end(self) -> dict[str, Any] | None:
        """Return the last request to end the job, as {grace_s, reason, at}, or None."""
        self._end = self._kept_open(self._end, self.file("end"))
        return None if os.pread(self._end, 1, 0) != b"{" else read_padded(self.file("end"))

    def fence(self) -> int:
        """Return the highest generation that this host has seen of the run."""
        self._fence = self._kept_open(self._fence, f"{self.run_path}/fence")
        return parse_fence(os.pread(self._fence, FENCE_BYTES, 0))

    @staticmethod
    def _kept_open(descriptor: int, path: str) -> int:
        return descriptor if descriptor >= 0 else os.open(path, os.O_RDONLY)

    def wake(self) -> None:
        """Make the shim look at its files now. It does so within 0.2 s in any case."""
        shims = self.status()["keepers"]
        if shims and environment_has(shims[-1], KEEPER_MARK, self.request.get("nonce", "?")):
            try:
                os.kill(shims[-1], signal.SIGUSR1)
            except ProcessLookupError:
                pass

    # --- for relays -------------------------------------------------------------------------------------------

    def look(self, hostname: str, boot_id: str) -> dict[str, Any] | None:
        """Return the job's status, or None if it is another host's job. Cleans up after a shim that is gone."""
        ended = self.exit()
        if ended is not None:
            return ended
        if not self.request or self.request["hostname"] != hostname:
            return None
        if self.request["boot_id"] != boot_id:
            return {**self.status(), "state": "lost", "reason": "reboot", "pid": None}
        lock = FileLock(self.file("lock"))
        if not lock.take(wait=False):
            return self.status()
        try:
            return self.exit() or self._clean_up()
        finally:
            lock.release()

    def _clean_up(self) -> dict[str, Any]:
        status = self.status()
        if status["state"] != "ended":  # otherwise only the rename is missing
            if not kill_marked(self.request["nonce"], status["pid"]):
                return {**status, "state": "ending"}
            status = {**status, "code": None, "reason": "agent_lost"}
        try:
            self.finish(status)
        except OSError as error:
            raise refusal(error, f"cannot write how {self.path} ended") from error
        return self.exit() or {**status, "state": "ended"}

    def close(self) -> None:
        """Close the files that are kept open."""
        for descriptor in (self._lease, self._end, self._fence):
            if descriptor >= 0:
                os.close(descriptor)
        self._lease = self._end = self._fence = -1


def parse_fence(text: bytes) -> int:
    """Parse a generation. An empty file means 0."""
    return int(text.strip(b" \0") or b"0")


def first_status(request: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a job whose process does not run yet."""
    return {
        "name": request.get("name"),
        "generation": request.get("generation"),
        "state": "running",
        "pid": None,
        "beat": 0,
        "started_at": None,
        "ended_at": None,
        "code": None,
        "reason": None,
        "oom": False,
        "full_disk": None,
        "log": request.get("log"),
        "log_start": 0,
        "gpus": request.get("gpus_given", []),
        "restarts": 0,
        "keepers": [],
    }
