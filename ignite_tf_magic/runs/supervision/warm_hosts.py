"""Keeps processes parked on the hosts of a finished run, for the next run of this process.

A host keeps parked processes only as long as the client stays connected. So this module keeps one connection to each
such host. It ends when the parking time is over, when another run has ended there, or with this process. An error here
only means that the next start is as slow as the first.
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

_MOST_JOBS = 4  # hosts park at most this many, and workers wait for the slowest of them
_PROCESS_BYTES = 512 << 20  # memory of a process that has imported TensorFlow
_CLOSE_S = 1.0  # a kernel gets only seconds to exit
_SIGN_OF_LIFE_S = 60.0  # a relay drops clients that have sent nothing for ten minutes


class _WarmHost:
    """A connection to a host, the processes parked there, and the thread that keeps the connection open."""

    def __init__(self, host: Host, jobs: Jobs, age_s: float) -> None:
        self._host = host
        self._jobs = jobs
        self._age_s = age_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"warm-{host.name}", daemon=True)
        self._thread.start()

    def begin_to_close(self) -> None:
        """Ask the thread to close the connection as soon as it is not waiting for the host."""
        self._is_over.set()

    def await_end(self, deadline: float) -> None:
        """Wait until the connection has been closed, at most until the deadline."""
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
            return  # processes parked there end with the connection

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
        """Park processes for jobs like these, replacing those of earlier runs; return at once.

        This opens a new connection, because workers on this machine start with this process's current environment.
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
        """Close all connections, waiting briefly for hosts that answer; the others are closed with this process."""
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
