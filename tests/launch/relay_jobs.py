"""Jobs for tests of relays, and a sink that stores output and checks that no byte arrives twice."""

from __future__ import annotations

import sys
import threading

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import Job, JobStatus
from tests.waiting import PATIENCE_S, until


def job(name: str, code: str, **options) -> Job:
    options = {"generation": 1, "env": {}, "log": f"{name}.log", **options}
    return Job(run="r1", name=name, argv=(sys.executable, "-c", code), **options)


def shell_job(name: str, script: str, **options) -> Job:
    """Return a job that starts faster than Python: a shell script."""
    options = {"generation": 1, "env": {}, "log": f"{name}.log", **options}
    return Job(run="r1", name=name, argv=("/bin/sh", "-c", script), **options)


def status_of(host: Host, name: str) -> JobStatus:
    return next(job for run in host.list_runs() for job in run.jobs if job.name == name)


def end_all(host: Host) -> None:
    host.end("r1", grace_s=0)
    until(lambda: all(job.has_ended for run in host.list_runs() for job in run.jobs))


class Kept:
    def __init__(self) -> None:
        self.logs: dict[str, bytearray] = {}
        self.gaps: list[tuple[str, int, int]] = []
        self.sizes: list[int] = []
        self.news = threading.Condition()

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        with self.news:
            log = self.logs.setdefault(path, bytearray())
            skipped = sum(end - start for gap, start, end in self.gaps if gap == path)
            assert offset == len(log) + skipped, f"{path}: {offset} after {len(log)} + {skipped}"
            log += data
            self.sizes.append(len(data))
            self.news.notify_all()

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        with self.news:
            self.gaps.append((path, start, end))

    def wait_for(self, path: str, num_bytes: int, timeout_s: float = PATIENCE_S) -> bytes:
        with self.news:
            done = self.news.wait_for(lambda: len(self.logs.get(path, b"")) >= num_bytes, timeout_s)
            assert done, {name: len(log) for name, log in self.logs.items()}
            return bytes(self.logs[path])
