"""`results/launch.json`: the speed of reaching many hosts, and of output from one host behind a real sshd.

The many hosts are fakes (tests/launch/fake_hosts.py): asyncssh in one process, with relays, shims and jobs for each.
They share this machine's cores and take most of the time; the client's own share is `client_cpu_ms_per_host`.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.plan import Report
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.jobs import Job
from ignite_tf_magic.launch.ssh import SshTransport
from ignite_tf_magic.launch.watch import HostWatch
from tests.launch.fake_hosts import FakeHosts
from tests.launch.sshd import Sshd

_RUN = "bench"
_TIMEOUT_S = 300.0
_STAMPS = """
import random, time
for _ in range({n}):
    print(time.time(), flush=True)
    time.sleep(random.uniform(0.05, 0.2))
"""


class _Sink:
    """Counts bytes by host, and measures the age of the time stamps in them."""

    def __init__(self, num_hosts: int, num_bytes: int = 1) -> None:
        self.is_done = threading.Event()
        self.ages_s: list[float] = []
        self._left = num_hosts * num_bytes
        self._num_bytes = num_bytes
        self._seen: dict[str, int] = {}

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        del offset  # the watch guarantees it
        now = time.time()
        if path == "stamps.log":
            self.ages_s += [now - float(line) for line in data.split()]
        before = self._seen.get(host, 0)
        self._seen[host] = before + len(data)
        self._left -= min(self._seen[host], self._num_bytes) - min(before, self._num_bytes)
        if self._left <= 0:
            self.is_done.set()

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        raise AssertionError(f"{host} deleted {path} from {start} to {end}")


def run(num_hosts: Sequence[int], stream_mb: int, num_stamps: int, report: Report) -> list[dict[str, Any]]:
    """Measure fan-out to each number of hosts, then a stream and the age of single lines."""
    rows = [_fan_out(number, report) for number in num_hosts]
    with _one_host() as host:
        return [*rows, _stream(host, stream_mb, report), _latency(host, num_stamps, report)]


def _fan_out(number: int, report: Report) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="fake-", ignore_cleanup_errors=True) as folder,
        ExitStack() as ends,
    ):
        fake = ends.enter_context(FakeHosts(Path(folder) / "hosts", number))
        began, cpu = time.monotonic(), time.process_time()
        sink = _Sink(number)
        hosts = [Host(name, SshTransport(name, fake.options), python=sys.executable) for name in fake.names]
        for host in hosts:
            ends.enter_context(host)
        _all_well(call_all(hosts, Host.hello))
        reached_s = time.monotonic() - began
        for host in hosts:
            ends.callback(host.end, _RUN, grace_s=0)
            ends.callback(HostWatch(host, _RUN, logs={"w0.log": 0}, sink=sink).stop)
        words = ("/bin/sh", "-c", "echo up; exec sleep 300")
        _all_well(
            call_all(hosts, lambda host: host.start(Job(_RUN, "w0", 1, words, {}, "w0.log", lease_s=60)))
        )
        started_s = time.monotonic() - began
        _wait(sink)
        first_output_s = time.monotonic() - began
        cpu_ms = (time.process_time() - cpu) * 1000 / number
    report(
        f"{number} hosts: reached {reached_s:.2f} s, started {started_s:.2f} s, all heard {first_output_s:.2f} s"
    )
    return {
        "case": "fan_out",
        "variant": f"{number} fake hosts",
        "reached_s": round(reached_s, 3),
        "started_s": round(started_s, 3),
        "first_output_s": round(first_output_s, 3),
        "ms_per_host": round(first_output_s * 1000 / number, 1),
        "client_cpu_ms_per_host": round(cpu_ms, 2),
    }


@contextmanager
def _one_host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="sshd-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (
            Sshd(folder / "sshd", env={"IGNITE_TF_HOME": str(folder / "home")}) as server,
            Host("box", SshTransport("box", server.options), python=sys.executable) as host,
        ):
            yield host
            host.end(_RUN, grace_s=0)


def _stream(host: Host, megabytes: int, report: Report) -> dict[str, Any]:
    num_bytes = megabytes * 1_000_000
    script = f"yes 0123456789012345678901234567890123456789 | head -c {num_bytes}"
    sink = _Sink(1, num_bytes)
    host.hello()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = HostWatch(host, _RUN, logs={"stream.log": 0}, sink=sink)
    began, cpu = time.monotonic(), time.process_time()
    host.start(Job(_RUN, "stream", 1, ("/bin/sh", "-c", script), {}, "stream.log"))
    _wait(sink)
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    watch.stop()
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1000
    report(f"{megabytes} MB over ssh: {took_s:.2f} s, {grown_mb:.0f} MB more memory")
    return {
        "case": "stream",
        "variant": f"{megabytes} MB over ssh",
        "seconds": round(took_s, 3),
        "mb_per_s": round(megabytes / took_s, 1),
        "client_cpu_s": round(cpu_s, 3),
        "memory_grown_mb": round(grown_mb, 1),
    }


def _latency(host: Host, number: int, report: Report) -> dict[str, Any]:
    sink = _Sink(1, sys.maxsize)
    watch = HostWatch(host, _RUN, logs={"stamps.log": 0}, sink=sink)
    host.start(Job(_RUN, "stamps", 1, (sys.executable, "-c", _STAMPS.format(n=number)), {}, "stamps.log"))
    give_up_at = time.monotonic() + _TIMEOUT_S
    while len(sink.ages_s) < number and time.monotonic() < give_up_at:
        time.sleep(0.05)
    watch.stop()
    ages_ms = sorted(age * 1000 for age in sink.ages_s)
    median_ms, late_ms = statistics.median(ages_ms), ages_ms[int(len(ages_ms) * 0.95)]
    report(f"a line reaches the sink after {median_ms:.1f} ms (median), {late_ms:.1f} ms (95 %)")
    return {
        "case": "latency",
        "variant": "a worker's flush to the sink, over ssh",
        "median_ms": round(median_ms, 2),
        "p95_ms": round(late_ms, 2),
        "max_ms": round(ages_ms[-1], 2),
    }


def _wait(sink: _Sink) -> None:
    if not sink.is_done.wait(_TIMEOUT_S):
        raise TimeoutError(f"not all output came within {_TIMEOUT_S:.0f} s")


def _all_well(results: Any) -> None:
    for result in results.values():
        if isinstance(result, Exception):
            raise result
