"""The hosts of a detached run, as seen through their reports in the registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ignite_tf_magic.runs.orders import HostReport
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.registry.registry import FailureDetector

_READ_EACH_S = 2.0


class RegistryHostPool:
    """A `host_pool.HostPool` that detects silent hosts by counters that stop, on this process's own clock.

    Only one thread may call `feed`.

    Args:
        scale: Divisor of all timeouts.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._began = time.monotonic()
        self._pulses: dict[str, FailureDetector] = {}
        self._unheard: dict[str, FailureDetector] = {}
        self._fed_at = self._began
        self._blind_s = 0.0  # total time in which the registry could not be read, so silence proved nothing
        self._rows: Mapping[str, Mapping[str, Any]] = {}
        self._record: RunRecord | None = None
        self._fed = threading.Event()

    def follow(self, record: RunRecord) -> None:
        """Note which hosts belong to the run; the hosts read the record from the registry themselves."""
        self._record = record

    def feed(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Pass in the current rows of the registry."""
        self._rows = {**self._rows, **rows}  # a missing row counts as a host with nothing new
        self._blind_s += max(time.monotonic() - self._fed_at - self._read_each_s, 0.0)
        self._fed_at = time.monotonic()
        now = self._now()
        for host, row in rows.items():
            self._unheard.setdefault(host, FailureDetector()).feed(row.get("counter"), self._fed_at)
            self._pulses.setdefault(host, FailureDetector()).feed(row.get("counter"), now)
        self._fed.set()

    def unheard_s(self, host: str) -> float | None:
        """Return the seconds since the host was last heard from, or None if it never was."""
        row = self._rows.get(host)
        return None if row is None else self._unheard[host].feed(row.get("counter"), time.monotonic())

    def silence_s(self, host: str) -> float | None:
        """Return the seconds of the host's silence while the registry was readable, or None if it was never heard."""
        row = self._rows.get(host)
        return None if row is None else self._pulses[host].feed(row.get("counter"), self._now())

    @property
    def _read_each_s(self) -> float:
        return _READ_EACH_S / self._scale

    def _now(self) -> float:
        """Return the time of a clock that stops while the registry cannot be read."""
        return min(time.monotonic(), self._fed_at + self._read_each_s) - self._blind_s

    def reports(self) -> Mapping[str, HostReport]:
        """Return the latest report of each host."""
        hosts = [host.name for host in self._record.hosts] if self._record else []
        found = {name: report for name in hosts if (report := self._report(name)) is not None}
        return MappingProxyType(found)

    def _report(self, host: str) -> HostReport | None:
        silent_s, unheard_s = self.silence_s(host), self.unheard_s(host)
        if silent_s is not None and unheard_s is not None:
            reachable = unheard_s < self.lapse_s
            return HostReport.from_json(self._rows[host], reachable=reachable, silent_s=silent_s)
        # Its reconciler may be about to start. An earlier supervisor may have heard from it until now, so count its
        # silence from the start of this process.
        silent_s = self._now() - self._began
        return None if silent_s < self.lapse_s else HostReport(host, reachable=False, silent_s=silent_s)

    @property
    def lapse_s(self) -> float:
        """Time of silence after which a host counts as unreachable."""
        return 6.0 / self._scale

    def wait(self, timeout_s: float) -> None:
        """Wait until the registry has been read again or the timeout has passed."""
        self._fed.wait(timeout_s)
        self._fed.clear()
