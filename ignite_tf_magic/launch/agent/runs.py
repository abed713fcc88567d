"""The runs of this host: their directories, generation fences and jobs. Nothing here waits for a job."""

from __future__ import annotations

import json
import os

from ignite_tf_magic.launch.agent.disk import (
    FileLock,
    Refused,
    checked_name,
    checked_path,
    host_clock,
    host_identity,
    names_in,
    open_below,
    open_directory,
    open_regular,
    read_json,
    remove_tree,
    unlink_if_there,
    write_all,
    write_whole,
)
from ignite_tf_magic.launch.agent.frames import MAX_PAYLOAD_BYTES
from ignite_tf_magic.launch.agent.job_files import FENCE_BYTES, JobFiles, parse_fence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_LIST_BYTES = 3 << 20  # limit for the runs in one answer: `frames` limits its header
# A cache has up to 65,000 partitions, which take about 4 MiB with indentation and 2 MiB without.
MAX_RECORD_BYTES = 8 << 20
_OURS = ("fence", "stop", "jobs")  # only other operations than `write` write these


class Runs:
    """All runs below one root directory."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.hostname, self.boot_id = host_identity()
        self._jobs: dict[tuple[str, int], JobFiles] = {}

    def path(self, run: Any) -> str:
        """Return the directory of a run, whether it exists or not."""
        return f"{self.root}/runs/{checked_name(run, 'run')}"

    def jobs(self, run: Any) -> list[tuple[JobFiles, dict[str, Any]]]:
        """Return the jobs of a run on this host with their status. Jobs of other hosts are left out."""
        directory = f"{self.path(run)}/jobs"
        found = []
        for name in names_in(directory):
            job = self.job(f"{directory}/{name}")
            status = self.look(job) if job else None
            if job and status:
                found.append((job, status))
        return found

    def job(self, path: str) -> JobFiles | None:
        """Return the job in a directory, or None if there is none."""
        try:
            key = (path, os.stat(path).st_ino)
        except OSError:
            return None
        if key not in self._jobs:
            self._jobs[key] = JobFiles(path)
        return self._jobs[key]

    def look(self, job: JobFiles) -> dict[str, Any] | None:
        """Return a job's status as clients see it, or None if it is another host's or has just vanished."""
        try:
            status = job.look(self.hostname, self.boot_id)
        except FileNotFoundError:
            return None
        return status and {**status, "log_bytes": _size(f"{job.run_path}/{status['log']}")}

    def alive(self, run: Any) -> list[tuple[JobFiles, dict[str, Any]]]:
        """Return the jobs that have not ended."""
        return [(job, status) for job, status in self.jobs(run) if status["state"] in ("running", "ending")]

    def fence(self, run: Any) -> int:
        """Return the highest generation seen of a run, or 0 if there was none."""
        return _read_fence(f"{self.path(run)}/fence")

    def is_stop_asked(self, run: Any) -> bool:
        """Return whether the owner of the run was asked to stop it."""
        return os.path.exists(f"{self.path(run)}/stop")


class FenceHeld:
    """The generation fence of a run, locked so that nobody else can raise it or start jobs."""

    def __init__(self, run_path: str) -> None:
        self._path = f"{run_path}/fence"
        self._lock = FileLock(self._path)

    def __enter__(self) -> FenceHeld:
        while True:
            os.makedirs(os.path.dirname(self._path), 0o700, exist_ok=True)
            try:
                self._lock.__enter__()
                return self
            except FileNotFoundError:  # the run was removed between the two calls
                continue

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def generation(self) -> int:
        """The highest generation seen."""
        return _read_fence(self._path)

    def raise_to(self, generation: int) -> None:
        """Refuse lower generations from now on, also after a power cut."""
        if generation > self.generation or os.fstat(self._lock.descriptor).st_size == 0:
            text = f"{max(generation, self.generation):<{FENCE_BYTES}}"
            os.pwrite(self._lock.descriptor, text.encode(), 0)
            os.fsync(self._lock.descriptor)


def _read_fence(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return parse_fence(file.read(FENCE_BYTES))
    except FileNotFoundError:
        return 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# --- operations -----------------------------------------------------------------------------------------------


def end(
    runs: Runs, run: str, names: list[str] | None, generation: int | None, grace_s: float, reason: str
) -> None:
    """Ask jobs to end: the named ones, or all without `keep`; with `generation`, only jobs up to that one."""
    for job, status in runs.alive(run):
        wanted = status["name"] in names if names is not None else not job.request["keep"]
        if wanted and (generation is None or status["generation"] <= generation):
            job.ask_to_end(float(grace_s), str(reason)[:200])


def fence(runs: Runs, run: str, generation: int) -> int:
    """Raise the fence and return it. The shims of older jobs then end their jobs."""
    with FenceHeld(runs.path(run)) as held:
        held.raise_to(generation)
        seen = held.generation
    wake_older(runs, run, seen)
    return seen


def wake_older(runs: Runs, run: str, generation: int) -> None:
    """Wake the shims of jobs of older generations."""
    for job, status in runs.alive(run):
        if status["generation"] < generation and not job.request["keep"]:
            job.wake()


def stop(runs: Runs, run: str) -> None:
    """Ask the owner of the run to stop it."""
    path = _existing(runs, run)
    os.close(os.open(f"{path}/stop", os.O_WRONLY | os.O_CREAT, 0o600))


def unstop(runs: Runs, run: str) -> None:
    """Withdraw the request to stop the run, because it is started again."""
    unlink_if_there(f"{runs.path(run)}/stop")


def renew(runs: Runs, run: str, generation: int, deadline: float) -> None:
    """Extend the leases of one generation's jobs to a deadline."""
    for job, status in runs.alive(run):
        if status["generation"] == generation:
            job.renew(deadline)


def set_lease(runs: Runs, run: str, generation: int, lease_s: float) -> None:
    """Set the leases of one generation's jobs to end in `lease_s` seconds, sooner or later than before."""
    for job, status in runs.alive(run):
        if status["generation"] == generation:
            job.set_deadline(host_clock() + lease_s)


def read(runs: Runs, run: str, path: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Return a piece of a run's file."""
    parts = checked_path(path)
    try:
        descriptor = open_regular(runs.path(run), parts)
    except FileNotFoundError:
        descriptor = None
    if descriptor is None:
        return {"exists": False, "file_size": 0}, b""
    try:
        data = os.pread(descriptor, min(max_bytes, MAX_PAYLOAD_BYTES), offset)
        return {"exists": True, "file_size": os.fstat(descriptor).st_size}, data
    finally:
        os.close(descriptor)


def write(runs: Runs, run: str, path: str, mode: int, data: bytes, *, append: bool) -> None:
    """Write a run's file or append to it. Missing directories are created."""
    parts = checked_path(path)
    if parts[0] in _OURS or mode & ~0o700:
        raise Refused("denied", f"{path!r} with mode {mode:o} may not be written")
    directory = runs.path(run)
    os.makedirs(directory, 0o700, exist_ok=True)
    if append:
        descriptor = open_below(directory, parts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode, make=True)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return
    parent = open_directory(directory, parts[:-1], make=True)
    try:
        write_whole(parts[-1], data, mode, parent)
    finally:
        os.close(parent)


def remove(runs: Runs, run: str) -> None:
    """Delete all files of a run. Raises Refused (`alive`) while one of its jobs runs."""
    path = runs.path(run)
    if not os.path.isdir(path):
        return
    with FenceHeld(path):
        alive = runs.alive(run)
        if alive:
            names = [status["name"] for _, status in alive]
            raise Refused("alive", f"run {run} still has live jobs: {', '.join(names)}", jobs=names)
        gone = f"{runs.root}/runs/.{run}.{os.urandom(4).hex()}"
        os.rename(path, gone)
    remove_tree(gone)


def list_runs(runs: Runs, wanted: list[str] | None, known: list[str]) -> dict[str, Any]:
    """Return the runs that are not in `known`, last changed first, as many as fit into one answer."""
    found: list[dict[str, Any]] = []
    there = set(names_in(f"{runs.root}/runs")).difference(known)
    names = [name for name in sorted(there) if wanted is None or name in wanted]
    names.sort(key=lambda name: _changed_at(f"{runs.root}/runs/{name}"), reverse=True)
    num_bytes = 0
    for name in names:
        try:
            entry = _listed(runs, name)
        except (OSError, ValueError, Refused) as error:  # a damaged run must not hide others
            entry = {"run": name, "record": None, "fence": 0, "stop": False, "jobs": [], "error": str(error)}
        size = len(json.dumps(entry))
        if size > _LIST_BYTES:
            entry, size = {**entry, "record": None}, 0
        num_bytes += size
        if num_bytes > _LIST_BYTES:
            return {"runs": found, "more": True}
        found.append(entry)
    return {"runs": found, "more": False}


def _listed(runs: Runs, name: str) -> dict[str, Any]:
    return {
        "run": name,
        "record": read_json(f"{runs.path(name)}/run.json", MAX_RECORD_BYTES),
        "fence": runs.fence(name),
        "stop": runs.is_stop_asked(name),
        "jobs": [status for _, status in runs.jobs(name)],
    }


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _existing(runs: Runs, run: str) -> str:
    path = runs.path(run)
    if not os.path.isdir(path):
        raise Refused("no_run", f"this host has no run {run}")
    return path
