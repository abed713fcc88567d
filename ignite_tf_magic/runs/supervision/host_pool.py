"""The hosts of a run as its supervisor sees them: records go out, reports come in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.launch.watch import HostWatch
from ignite_tf_magic.runs.orders import HostProblem, HostReport
from ignite_tf_magic.runs.record import HostRecord, RunRecord
from ignite_tf_magic.runs.supervision.host_controller import HostController

_STEP_S = 0.2
_JOIN_S = 2.0


class HostPool(Protocol):
    """A set of hosts that carry out orders."""

    def follow(self, record: RunRecord) -> None:
        """Send the newest record to the hosts. Does not block."""
        ...

    def reports(self) -> Mapping[str, HostReport]:
        """Return the latest report of each host. Does not block."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a report has changed or the timeout has passed."""
        ...


class HostWorker(Closing):
    """A thread that passes the newest record to a host controller, and keeps the controller's newest report."""

    def __init__(
        self,
        controller: HostController,
        watch: HostWatch,
        wake: threading.Event,
        on_report: Callable[[], None],
        name: str,
    ) -> None:
        self._controller = controller
        self._watch = watch
        self._on_report = on_report
        self._record: RunRecord | None = None
        self._wake = wake
        self._is_closing = False
        self._name = name
        self.report: HostReport | None = None
        self._thread = threading.Thread(target=self._work, name=f"host-{name}", daemon=True)
        self._thread.start()

    def follow(self, record: RunRecord) -> None:
        """Pass the newest record to the controller."""
        self._record = record
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait(_STEP_S)
            self._wake.clear()
            is_last = self._is_closing  # read first, so that the last record is still carried out
            if self._record is not None:
                self._reconcile(self._record)
            if is_last:
                return

    def _reconcile(self, record: RunRecord) -> None:
        try:
            self._set(self._controller.reconcile(record))
        except Exception as error:  # noqa: BLE001 - an internal error ends the run and is shown
            fault = HostProblem("fault", f"{type(error).__name__}: {error}", is_retryable=False)
            before = self.report or HostReport(self._name)
            self._set(replace(before, generation=record.generation, error=fault))

    def _set(self, report: HostReport) -> None:
        if report != self.report:
            self.report = report
            self._on_report()

    def begin_to_close(self) -> None:
        """Carry out the record once more, then stop."""
        self._is_closing = True
        self._wake.set()

    def close(self, deadline: float | None = None) -> None:
        """Stop controlling the host; its jobs continue. Waits for the thread's last work, at most until `deadline`."""
        self.begin_to_close()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S if deadline is None else max(deadline - time.monotonic(), 0.0))
        self._watch.stop()


Open = Callable[[HostRecord, Callable[[], None]], tuple[HostController, HostWatch]]


class DirectHostPool(Closing):
    """Hosts to which this process itself connects.

    Args:
        open_host: Opens a host of the record. It must call its second argument when the host's view changes.
    """

    def __init__(self, open_host: Open) -> None:
        self._open_host = open_host
        self._posts: dict[str, HostWorker] = {}
        self._changed = threading.Event()

    def follow(self, record: RunRecord) -> None:
        """Send the newest record to the hosts, and open hosts that are new."""
        for host in record.hosts:
            if host.name not in self._posts:
                self._posts[host.name] = self._open(host)
            self._posts[host.name].follow(record)

    def _open(self, host: HostRecord) -> HostWorker:
        wake = threading.Event()
        controller, watch = self._open_host(host, wake.set)
        return HostWorker(controller, watch, wake, self._changed.set, host.name)

    def reports(self) -> Mapping[str, HostReport]:
        """Return the latest report of each host."""
        return MappingProxyType({name: post.report for name, post in self._posts.items() if post.report})

    def wait(self, timeout_s: float) -> None:
        """Wait until a report has changed or the timeout has passed."""
        self._changed.wait(timeout_s)
        self._changed.clear()

    def close(self) -> None:
        """Stop controlling the hosts; their jobs continue until their leases expire."""
        for post in self._posts.values():
            post.begin_to_close()
        deadline = time.monotonic() + _JOIN_S
        for post in self._posts.values():
            post.close(deadline)
