"""Starts a job at most once, never of an older generation, and never beside an older one that lives."""

from __future__ import annotations

import errno
import os
import time
from functools import partial

from ignite_tf_magic.launch.agent.devices import (
    check_memory,
    choose_gpus,
    gpu_environment,
    held_devices,
    list_gpus,
    list_leases,
)
from ignite_tf_magic.launch.agent.disk import (
    FileLock,
    Refused,
    check_room,
    checked_name,
    checked_path,
    expanded,
    host_clock,
    open_regular,
    refusal,
    remove_tree,
)
from ignite_tf_magic.launch.agent.job_files import JobFiles
from ignite_tf_magic.launch.agent.parking import Parked, Parking
from ignite_tf_magic.launch.agent.runs import FenceHeld, Runs, wake_older
from ignite_tf_magic.launch.agent.shims import report_of, start_shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OTHER_START_S = 10.0


class Starter:
    """Starts jobs for a relay."""

    def __init__(self, runs: Runs, digest: str, umask: int, parking: Parking) -> None:
        self._runs = runs
        self._digest = digest
        self._umask = umask
        self._parking = parking

    def start(self, request: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        """Start a job and return its status once its process runs. Takes about 50 ms.

        A repeated equal request starts nothing and returns the status of the existing job.
        """
        if isinstance(request.get("stdin"), str):
            stdin = _sent_before(self._runs.path(checked_name(request["run"], "run")), request["stdin"])
        asked = self._checked(request, stdin)
        deadline = _deadline(request.get("lease"))
        path = f"{self._runs.path(asked['run'])}/jobs/{asked['name']}"
        while True:
            existing = self._status_of_same(path, asked)
            if existing:
                return existing
            check_room(self._runs.root)
            claimed = self._claim(path, asked, deadline)
            if claimed:
                return self._launch(path, claimed, stdin)

    def _checked(self, request: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        argv, env = request["argv"], request.get("env") or {}
        if not argv or not all(isinstance(word, str) for word in [*argv, *env, *env.values()]):
            raise Refused("bad_request", "argv and env are made of strings, and argv has one at least")
        run = checked_name(request["run"], "run")
        checked_path(request["log"])
        if request.get("exit_file"):
            checked_path(request["exit_file"])
        keep = bool(request.get("keep"))
        lease = request.get("lease")
        return {
            "run": run,
            "name": checked_name(request["name"], "job"),
            "generation": 0 if keep else int(request["generation"]),
            "argv": expanded(argv),
            "env": env,
            "cwd": self._directory(request.get("cwd"), run),
            "cwd_create": bool(request.get("cwd_create")),
            "log": request["log"],
            "lease_s": None if lease is None else float(lease["lease_s"]),
            "grace_s": float(request.get("grace_s", 3.0)),
            "ports": [int(port) for port in request.get("ports") or ()],
            "gpus": int(request.get("gpus") or 0),
            "memory_bytes": int(request.get("memory_bytes") or 0),
            "respawns": int(request.get("respawns") or 0),
            "keep": keep,
            "log_limit_bytes": request.get("log_limit_bytes"),
            "exit_file": request.get("exit_file") or "",
            "stdin": _digest_of(stdin) if stdin else None,
            "warm": request.get("warm"),
        }

    def _directory(self, cwd: str | None, run: str) -> str:
        if cwd is None:
            return os.getcwd()
        return os.path.normpath(os.path.join(self._runs.path(run), os.path.expanduser(cwd)))

    def _status_of_same(self, path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return the status of a job that an equal request started, once it runs, or None if there is none."""
        give_up_at = time.monotonic() + _OTHER_START_S
        while time.monotonic() < give_up_at:
            job = self._runs.job(path)
            status = self._runs.look(job) if job else None
            if not job or not status:
                if job and os.path.isdir(path):
                    raise Refused("exists", f"{asked['name']} is a job of another host or damaged")
                return None
            if {name: job.request.get(name) for name in asked} != asked:
                raise Refused("exists", f"{asked['name']} exists and is another job", job=status)
            if asked["generation"] < self._runs.fence(asked["run"]):
                raise _stale(asked, self._runs.fence(asked["run"]))
            if status["started_at"] is not None or status["state"] not in ("running", "ending"):
                return status
            time.sleep(0.01)  # another relay is starting it, and may fail
        raise Refused("exists", f"{asked['name']} has been starting for {_OTHER_START_S:.0f} s")

    def _claim(
        self, path: str, asked: dict[str, Any], deadline: float | None
    ) -> tuple[FileLock, Parked | None] | None:
        """Create the job's directory, complete and locked, in one step; return None if another relay was first."""
        gpus = list_gpus() if asked["gpus"] else []
        if not (asked["ports"] or asked["gpus"] or asked["memory_bytes"]):
            return self._claim_fenced(path, asked, gpus, deadline)
        with FileLock(f"{self._runs.root}/devices.lock"):
            return self._claim_fenced(path, asked, gpus, deadline)

    def _claim_fenced(
        self, path: str, asked: dict[str, Any], gpus: list[dict[str, Any]], deadline: float | None
    ) -> tuple[FileLock, Parked | None] | None:
        with FenceHeld(self._runs.path(asked["run"])) as fence:
            if asked["keep"]:
                fence.raise_to(0)
            else:
                self._check_generation(asked, fence)
            request = {**asked, **self._given(asked, gpus)}
            parked = self._parking.take(request)
            if parked is not None:
                request["nonce"] = parked.nonce  # the parked process already has it in its environment
            lock = None
            try:
                lock = self._lay_out(path, request, deadline)
            finally:
                if lock is None and parked is not None:
                    parked.let_go()
            return None if lock is None else (lock, parked)

    def _check_generation(self, asked: dict[str, Any], fence: FenceHeld) -> None:
        if asked["generation"] < fence.generation:
            raise _stale(asked, fence.generation)
        fence.raise_to(asked["generation"])
        wake_older(self._runs, asked["run"], asked["generation"])
        older = [
            status
            for job, status in self._runs.alive(asked["run"])
            if not job.request["keep"] and status["generation"] < asked["generation"]
        ]
        if older:
            names = ", ".join(status["name"] for status in older)
            raise Refused("older_alive", f"jobs of older generations still live: {names}", jobs=older)

    def _given(self, asked: dict[str, Any], known_gpus: list[dict[str, Any]]) -> dict[str, Any]:
        gpus: list[int] = []
        if asked["ports"] or asked["gpus"] or asked["memory_bytes"]:
            leases = list_leases(self._runs)
            held_gpus, held_ports = held_devices(leases)
            for port in asked["ports"]:
                if port in held_ports:
                    raise Refused("port_taken", f"port {port} belongs to another job", port=port)
            if asked["memory_bytes"]:
                check_memory(asked["memory_bytes"], leases)
            gpus = choose_gpus(asked["gpus"], known_gpus, held_gpus)
        return {
            "gpus_given": gpus,
            "gpu_env": gpu_environment(gpus),
            "nonce": os.urandom(16).hex(),
            "hostname": self._runs.hostname,
            "boot_id": self._runs.boot_id,
            "umask": self._umask,
        }

    def _lay_out(self, path: str, request: dict[str, Any], deadline: float | None) -> FileLock | None:
        jobs, name = os.path.split(path)
        os.makedirs(jobs, 0o700, exist_ok=True)
        part = f"{jobs}/.{name}.{os.urandom(4).hex()}"
        lock = FileLock(f"{part}/lock")
        try:
            os.mkdir(part, 0o700)
            lock.take(wait=True)
            JobFiles(part).lay_out(request, deadline)
            os.rename(part, path)
        except BaseException as error:
            lock.release()
            remove_tree(part)
            if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return None
            raise
        return lock

    def _launch(self, path: str, claimed: tuple[FileLock, Parked | None], stdin: bytes) -> dict[str, Any]:
        lock, parked = claimed
        try:
            answer = self._run_shim(path, lock, stdin, parked)
        except BaseException:
            _discard(path)
            raise
        finally:
            lock.release()
        if answer and "kind" in answer:
            _discard(path)
            raise Refused(answer.pop("kind"), answer.pop("message"), **answer)
        job = self._runs.job(path)
        status = self._runs.look(job) if job else None
        if not status:
            raise Refused("internal", f"the shim of {path} is gone and so are its files")
        return status

    def _run_shim(
        self, path: str, lock: FileLock, stdin: bytes, parked: Parked | None
    ) -> dict[str, Any] | None:
        """Start the job's shim, or turn a parked one into it; return its report, or None if it was killed before."""
        job_input = _input(path, stdin)
        try:
            errors = os.open(f"{path}/keeper.err", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                answer = parked.hand_over(path, job_input, errors, lock.descriptor) if parked else None
                if answer is not None:
                    return answer
                start = partial(
                    start_shim, self._runs.root, self._digest, "keep", path, JobFiles(path).request["nonce"]
                )
                return report_of(lambda tell: start((job_input, tell, errors, lock.descriptor)))
            finally:
                os.close(errors)
        finally:
            os.close(job_input)


def _deadline(lease: dict[str, Any] | None) -> float | None:
    if lease is None:
        return None
    deadline = min(float(lease["token"]), host_clock()) + float(lease["lease_s"])
    if deadline <= host_clock():
        raise Refused("lease_over", "the lease of this job expired before it could start")
    return deadline


def _stale(asked: dict[str, Any], fence: int) -> Refused:
    message = (
        f"generation {asked['generation']} of run {asked['run']} is outdated: this host has seen {fence}"
    )
    return Refused("stale_generation", message, fence=fence)


def _digest_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _sent_before(directory: str, path: str) -> bytes:
    """Read an input that was too large for the request and was sent as a file; remove the file."""
    descriptor = open_regular(directory, checked_path(path))
    if descriptor is None:
        raise Refused("bad_request", f"input {path!r} is missing: write it before each start")
    with open(descriptor, "rb") as file:
        data = file.read()
    os.unlink(f"{directory}/{path}")
    return data


def _input(path: str, data: bytes) -> int:
    """Return a descriptor from which the job reads its input. If possible, the bytes are not on any disk."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        descriptor = os.open(f"{path}/stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(f"{path}/stdin")
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return descriptor


def _discard(path: str) -> None:
    jobs, name = os.path.split(path)
    gone = f"{jobs}/.{name}.{os.urandom(4).hex()}"
    try:
        os.rename(path, gone)
    except FileNotFoundError:
        return
    remove_tree(gone)


def as_refusal(error: OSError) -> Refused:
    """Convert an error of the operating system that no operation expected into a refusal."""
    told = refusal(error, f"cannot use {error.filename!r}" if error.filename else "the system refused")
    if error.errno in (errno.EROFS, errno.EACCES):
        advice = "make it writable, or set root of [hosts.NAME] to another directory"
        return Refused(told.kind, f"{told}; {advice}", **told.facts)
    return told
