"""The shim of one job: a daemon of two processes, outer and inner, each of which can clean up after the other.

The inner process starts the job's process and supervises it. If the inner process is killed, the job's process dies
with it (PDEATHSIG). The outer process inherits the job's remaining processes, kills them and records the end. If both
are killed at once, the next relay that looks at the job does so.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from ignite_tf_magic.launch.agent.disk import (
    checked_path,
    disk_of,
    full_disk_of,
    host_clock,
    open_below,
    read_only_disk_of,
)
from ignite_tf_magic.launch.agent.job_files import JobFiles, first_status
from ignite_tf_magic.launch.agent.processes import (
    adopt_orphans,
    descendants_memory_bytes,
    kill_children,
    kill_descendants,
    kill_group,
    oom_kills,
)
from ignite_tf_magic.launch.agent.spawning import (
    BLOCK_BYTES,
    KEEPER_SIGNALS,
    StartFailed,
    can_punch,
    held_port,
    punch,
    spawn,
    start_failure,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class EarlyProcess(Protocol):
        """A process that was started before its job existed."""

        pid: int

        def become(self, request: dict[str, Any], log: int) -> None:
            """Make it the job's process. Raises OSError if that fails."""

        def kill(self) -> None:
            """Kill the process."""


# Descriptors that a shim is started with. 0 is the job's input, and 2 is for tracebacks.
KEEPER_REPORT, KEEPER_LOCK = 1, 3
_TICK_S = 0.2
_BEAT_S = 1.0
_PASSES_PER_LOOK_AT_ALL = 50
# If a disk has less room than both _LOW_BYTES and 1/_LOW_SHARE of its size, logs shrink, down to _LEAST_LOG_BYTES.
_LOW_BYTES, _LOW_SHARE, _LEAST_LOG_BYTES = 64 << 20, 8, 4 << 20
_CLEAN_PASSES = 4  # passes that kill nothing but leave children: shims, or processes of other users
_MOST_REPORT_BYTES = 1 << 20
_REPORTED_S = 10.0  # how long a process may run after it has reported its end
_FIRST_PAUSE_S, _LAST_PAUSE_S, _GOOD_LIFE_S = 0.5, 10.0, 60.0


def keep(directory: str) -> None:
    """Run the shim of the job in a directory. The calling process ends; a daemon goes on."""
    outer = become_shim()
    inner = os.fork()
    if inner == 0:
        run_inner(lambda: ProcessShim(JobFiles(directory), outer).run())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, KEEPER_REPORT):
        os.dup2(nothing, descriptor)
    watch_inner(JobFiles(directory), inner)
    os._exit(0)


def become_shim() -> int:
    """Become a daemon that adopts orphaned descendants; return its pid. The calling process ends."""
    os.set_inheritable(KEEPER_LOCK, False)
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, KEEPER_SIGNALS)
    adopt_orphans()
    return os.getpid()


def run_inner(work: Callable[[], None]) -> None:
    """Do the work of the inner process, and end the process."""
    code = 1
    try:
        adopt_orphans()
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        os._exit(code)


def watch_inner(files: JobFiles, inner: int) -> None:
    """Wait for the inner process. If it failed or was killed, kill what it left and record the job's end."""
    pid, status = os.waitpid(-1, 0)
    while pid != inner:
        pid, status = os.waitpid(-1, 0)
    if status != 0:
        end_tree(files.status()["pid"])
        files.finish({**files.status(), "code": None, "reason": "agent_lost"})


def end_tree(group: int | None, reaped: Any = None, between: Any = None) -> None:
    """Kill every descendant of this process and wait until none is left.

    Args:
        group: Their process group, which is used where there is no /proc.
        reaped: Called with (pid, wait status) of each child that has ended.
        between: Called between passes. A process that waits for a disk may need many passes.
    """
    num_passes = num_clean = 0
    while num_clean < _CLEAN_PASSES:
        if num_passes % _PASSES_PER_LOOK_AT_ALL == 0:
            kill_descendants()
        alive = kill_children()
        if group is not None and not os.path.isdir("/proc/self"):
            alive = kill_group(group)
        for pid, status in reap():
            alive = True
            if reaped is not None:
                reaped(pid, status)
        if not alive and not _has_children():
            return
        num_clean = 0 if alive else num_clean + 1
        if between is not None:
            between()
        num_passes += 1
        time.sleep(0 if num_passes < _PASSES_PER_LOOK_AT_ALL else 0.02)


def reap() -> list[tuple[int, int]]:
    """Return (pid, wait status) of every child that has ended since the last call."""
    found: list[tuple[int, int]] = []
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return found
            found.append((pid, status))
    except ChildProcessError:
        return found


def _has_children() -> bool:
    if not hasattr(os, "waitid"):  # macOS
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ProcessShim:
    """The inner process: starts the job's process, or takes over a parked one, and ends it if there is a reason.

    The reasons are a request, a later generation, the lease, the memory limit, and SIGTERM.
    """

    def __init__(self, files: JobFiles, outer: int, early: EarlyProcess | None = None) -> None:
        self._files = files
        self._early = early
        self._request = files.request
        self._status = {**first_status(self._request), "keepers": [outer, os.getpid()]}
        self._process: int | None = None
        self._group: int | None = None
        self._killed = False  # whether we killed the present process
        self._kill_at: float | None = None
        self._beat_at = 0.0
        self._oom_kills = oom_kills()
        self._start_at: float | None = None  # when to start the process again
        self._pause_s = _FIRST_PAUSE_S
        self._terminated = False
        self._has_too_much = False
        self._reported_code: int | None = None
        self._log = -1
        self._launched_at = 0.0
        self._held: list[Any] = []

    def run(self) -> None:
        """Start the process and supervise it until it and all its descendants have ended."""
        try:
            self._prepare()
            self._launch()
        except StartFailed as failure:
            self._report({"kind": failure.kind, "message": str(failure), **failure.facts})
            return
        self._report({})
        while self._step():
            self._wait()
        if self._status["code"]:
            own, cwd = self._files.run_path, self._request["cwd"]
            temporary = self._request["env"].get("TMPDIR") or os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - asked for its room only
            # The working directory may be read-only on purpose.
            self._status["full_disk"] = full_disk_of([own, cwd, temporary]) or read_only_disk_of(
                [own, temporary]
            )
        self._files.finish(self._status)

    def _report(self, answer: dict[str, Any]) -> None:
        try:
            os.write(KEEPER_REPORT, json.dumps(answer).encode() + b"\n")
        except BrokenPipeError:
            pass  # the relay is gone, but the job goes on
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, KEEPER_REPORT)
        os.close(nothing)

    # --- start ------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        parts = checked_path(self._request["log"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self._log = open_below(self._files.run_path, parts, flags, make=True)
            os.set_blocking(self._log, True)
        except OSError as error:
            raise start_failure(error, f"cannot write the log {self._request['log']!r}") from error
        if self._request["cwd_create"]:
            try:
                os.makedirs(self._request["cwd"], 0o700, exist_ok=True)
            except OSError as error:
                raise start_failure(error, f"cannot make the directory {self._request['cwd']!r}") from error
        for port in self._request["ports"]:
            self._held.append(held_port(port))
        if self._is_fenced():
            raise StartFailed("stale_generation", "the run has a later generation", fence=self._files.fence())

    def _launch(self) -> None:
        """Start the process, for the first time or again."""
        self._killed = False
        self._process = self._group = self._adopted() or spawn(self._request, self._log)
        self._status.update(pid=self._process, code=None)
        self._status["started_at"] = self._status["started_at"] or time.time()
        self._launched_at = host_clock()
        self._beat()

    def _adopted(self) -> int | None:
        """Make the parked process the job's; return its pid, or None if there is none or it fails."""
        early, self._early = self._early, None
        if early is None:
            return None
        try:
            # Written before the hand-over, so that a relay that gets no report does not start the job a second time.
            self._files.write_status({**self._status, "pid": early.pid, "started_at": time.time()})
            early.become(self._request, self._log)
        except OSError:
            early.kill()
            return None
        return early.pid

    # --- supervision ------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        if not hasattr(signal, "sigtimedwait"):  # macOS
            time.sleep(_TICK_S)
            return
        heard = signal.sigtimedwait(KEEPER_SIGNALS, _TICK_S)
        self._terminated |= heard is not None and heard.si_signo == signal.SIGTERM

    def _step(self) -> bool:
        """Do what is due; return False once the job is over."""
        had_process = self._process is not None
        for pid, status in reap():
            self._see_reaped(pid, status)
        now = host_clock()
        if self._process is not None or not had_process:
            self._see_reasons(now)
        is_time = self._kill_at is not None and now >= self._kill_at
        if self._process is not None and (is_time or self._has_outlived_its_report()):
            self._killed = True
        if self._killed or (had_process and self._process is None):
            end_tree(self._group, self._see_reaped, self._beat_if_due)
        if self._process is None and not self._go_on_without_process(now):
            return False
        self._beat_if_due()
        return True

    def _see_reaped(self, pid: int, status: int) -> None:
        if pid == self._process:
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            is_oom = code == -signal.SIGKILL and not self._killed and oom_kills() > self._oom_kills
            self._process = None
            code = code if self._reported_code is None else self._reported_code
            self._status.update(pid=None, code=code, oom=is_oom)

    def _has_outlived_its_report(self) -> bool:
        """Return whether the process still runs 10 s after it reported its end; store the reported exit code."""
        name = self._request.get("exit_file")
        if not name:
            return False
        path = os.path.join(self._files.run_path, name)
        try:
            reported_at = os.stat(path).st_mtime
            if time.time() - reported_at < _REPORTED_S or reported_at < self._status["started_at"]:
                return False
            with open(path, "rb") as file:
                self._reported_code = int(json.loads(file.read(_MOST_REPORT_BYTES))["exit_code"]) & 0xFF
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def _go_on_without_process(self, now: float) -> bool:
        """Return whether the job is to have another process; start that when it is due."""
        if self._kill_at is not None or not (self._start_at or self._may_start_again()):
            self._status["reason"] = self._status["reason"] or "exited"
            return False
        if self._start_at is None:
            if now - self._launched_at >= _GOOD_LIFE_S:
                self._pause_s = _FIRST_PAUSE_S
            self._start_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)
        elif now >= self._start_at:
            self._start_at = None
            self._status["restarts"] += 1
            self._tell_of_respawn()
            try:
                self._launch()
            except StartFailed as failure:
                os.write(2, f"{failure}\n".encode())
                self._launched_at = now
                self._status["code"] = 127
        return True

    def _may_start_again(self) -> bool:
        if self._request["keep"]:
            return bool(self._status["code"])
        return bool(self._status["code"] < 0 and self._status["restarts"] < self._request.get("respawns", 0))

    def _tell_of_respawn(self) -> None:
        if self._request["keep"]:
            return
        words = f"ignite_tf_magic: ended by signal {-self._status['code']}; started again ({self._status['restarts']})"
        try:
            os.write(self._log, f"{words}\n".encode())
        except OSError:
            pass  # a full disk must not prevent the restart

    def _see_reasons(self, now: float) -> None:
        """Begin to end the job if there is a reason. A later request can only hasten the end."""
        asked = self._files.asked_end()
        if self._kill_at is None:
            reason = self._reason_to_end(now)
            if reason is None and not asked:
                return
            grace_s = asked["grace_s"] if asked and reason is None else self._request["grace_s"]
            self._kill_at = now + grace_s
            self._status.update(state="ending", reason=reason or (asked or {})["reason"])
            self._beat()
            if self._process is not None and grace_s > 0:
                self._ask_process()
        if asked:
            self._kill_at = min(self._kill_at, asked["at"] + asked["grace_s"])

    def _ask_process(self) -> None:
        try:
            os.kill(self._process or 0, signal.SIGTERM)
        except PermissionError:  # it now belongs to another user
            pass

    def _reason_to_end(self, now: float) -> str | None:
        if self._is_fenced():
            return "fenced"
        deadline = self._files.deadline()
        if deadline is not None and now >= deadline:
            return "lease"
        if self._has_too_much:
            return "memory"
        return "terminated" if self._terminated else None

    def _is_fenced(self) -> bool:
        return not self._request["keep"] and self._files.fence() > self._request["generation"]

    def _beat_if_due(self) -> None:
        if host_clock() - self._beat_at >= _BEAT_S:
            self._beat()

    def _beat(self) -> None:
        self._beat_at = host_clock()
        self._status["beat"] += 1
        self._oom_kills = oom_kills() if self._process is not None else self._oom_kills
        if limit := self._request.get("memory_bytes"):
            self._has_too_much = self._has_too_much or descendants_memory_bytes() > limit
        try:
            self._bound_log()
            self._files.write_status(self._status)
        except OSError:
            pass  # a full copy-on-write file system: the heartbeat stops, but the job goes on

    def _bound_log(self) -> None:
        """Free the head of a log that exceeds its limit. Offsets stay the same; `log_start` is its new beginning."""
        limit = self._request["log_limit_bytes"]
        size = os.fstat(self._log).st_size
        kept = size - self._status["log_start"]
        if limit is not None and kept > _LEAST_LOG_BYTES:
            free, total = disk_of(self._files.run_path)
            if free < min(_LOW_BYTES, total // _LOW_SHARE):
                limit = min(limit, max(kept // 2, _LEAST_LOG_BYTES))
        if limit is None or kept <= limit:
            return
        start = (size - limit // 2) // BLOCK_BYTES * BLOCK_BYTES
        if start > self._status["log_start"] and can_punch(self._log):
            self._status["log_start"] = start
            self._files.write_status(self._status)  # before bytes are freed: readers check it after reading
            punch(self._log, start)
