"""Keeps processes parked on the hosts of a run that has ended, for the next run of this process.

A host parks them for who is connected to it: so there is a connection to each such host, which ends when its processes
have waited for long enough, when another run has ended there, or with this process. Whatever fails here only makes the
next start as slow as the first.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import EarlyProgram, Job
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord

Jobs = Sequence[tuple[Job, tuple[int, ...]]]

_MOST_JOBS = 4  # as hosts park no more, and workers wait for the slowest of them
_PROCESS_BYTES = 512 << 20  # TensorFlow, imported, on its own pages
_CLOSE_S = 1.0  # who ends a kernel waits for seconds only
_SIGN_OF_LIFE_S = 60.0  # a relay gives up a client that says nothing for ten minutes


class _WarmHost:
    """A connection to a host, the processes that are parked for it, and the thread that keeps it."""

    def __init__(self, host: Host, jobs: Jobs, age_s: float) -> None:
        self._host = host
        self._jobs = jobs
        self._age_s = age_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"warm-{host.name}", daemon=True)
        self._thread.start()

    def begin_to_close(self) -> None:
        """Have them end as soon as the thread is not waiting for the host."""
        self._is_over.set()

    def await_end(self, deadline: float) -> None:
        """Wait, no longer than until then, until the connection has ended."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self) -> None:
        try:
            with self._host:
                self._host.hello()
                if not self._is_over.is_set():
                    self._park()
                until = time.monotonic() + self._age_s
                while (rest_s := until - time.monotonic()) > 0:
                    if self._is_over.wait(min(rest_s, _SIGN_OF_LIFE_S)):
                        return
                    self._host.hello()
        except IgniteTfError:
            return  # what was parked there ends with the link

    def _park(self) -> None:
        kinds = [_kind_of(job, gpus) for job, gpus in self._jobs]
        for number, (job, gpus) in enumerate(self._jobs):
            kind = kinds[number]
            if kind not in kinds[:number]:
                count = kinds.count(kind)
                self._host.park(job, gpus, count=count, age_s=self._age_s, memory_bytes=_PROCESS_BYTES)


def _kind_of(job: Job, gpus: tuple[int, ...]) -> tuple[EarlyProgram | None, dict[str, str], tuple[int, ...]]:
    return job.early, dict(job.env), gpus


class WarmHosts:
    """The hosts on which processes are parked for this process. Thread-safe."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str | None, ...], _WarmHost] = {}
        self._lock = threading.Lock()

    def park(self, reach: Reach, host: HostRecord, jobs: Jobs, age_s: float) -> None:
        """Have processes parked for jobs like these, in place of those of earlier runs; returns at once.

        The connection is a new one, as workers on this machine are started in this process' present environment.
        """
        if not 0 < len(jobs) <= _MOST_JOBS:
            return
        way = (host.name, host.ssh, host.root, host.agent_python)
        with self._lock:
            before = self._hosts.pop(way, None)
            if before is not None:
                before.begin_to_close()
            self._hosts[way] = _WarmHost(reach.open(host), jobs, age_s)

    def close(self) -> None:
        """End all that is parked, as far as hosts answer at once; the rest ends with this process."""
        deadline = time.monotonic() + _CLOSE_S
        with self._lock:
            hosts = list(self._hosts.values())
            self._hosts.clear()
        for host in hosts:
            host.begin_to_close()
        for host in hosts:
            host.await_end(deadline)


WARM_HOSTS = WarmHosts()
atexit.register(WARM_HOSTS.close)
