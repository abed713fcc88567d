"""The hosts of a run, as its supervisor sees them: a record goes out, reports come in."""

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
    """Carries out orders on hosts."""

    def follow(self, record: RunRecord) -> None:
        """Tell the hosts of the newest record. Does not block."""
        ...

    def reports(self) -> Mapping[str, HostReport]:
        """Return what each host has reported last. Does not block."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a report has changed, or for some time."""
        ...


class HostWorker(Closing):
    """A host controller at work: a thread that has it carry out the newest record, and keeps its newest report."""

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
        """Hand the controller the newest record."""
        self._record = record
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait(_STEP_S)
            self._wake.clear()
            is_last = self._is_closing  # asked first: the last record is carried out, too
            if self._record is not None:
                self._reconcile(self._record)
            if is_last:
                return

    def _reconcile(self, record: RunRecord) -> None:
        try:
            self._set(self._controller.reconcile(record))
        except Exception as error:  # noqa: BLE001 - a fault of ours ends the run, and is shown
            fault = HostProblem("fault", f"{type(error).__name__}: {error}", is_retryable=False)
            before = self.report or HostReport(self._name)
            self._set(replace(before, generation=record.generation, error=fault))

    def _set(self, report: HostReport) -> None:
        if report != self.report:
            self.report = report
            self._on_report()

    def begin_to_close(self) -> None:
        """Obey once more, then leave the host alone."""
        self._is_closing = True
        self._wake.set()

    def close(self, deadline: float | None = None) -> None:
        """Leave the host alone; what runs there goes on. Waits for its last work until `deadline`."""
        self.begin_to_close()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S if deadline is None else max(deadline - time.monotonic(), 0.0))
        self._watch.stop()


Open = Callable[[HostRecord, Callable[[], None]], tuple[HostController, HostWatch]]


class DirectHostPool(Closing):
    """Hosts that this process reaches itself.

    Args:
        open_host: Opens a host that the record names; its second argument is to be called when the host's view changes.
    """

    def __init__(self, open_host: Open) -> None:
        self._open_host = open_host
        self._posts: dict[str, HostWorker] = {}
        self._changed = threading.Event()

    def follow(self, record: RunRecord) -> None:
        """Tell the hosts of the newest record, and open those that are new."""
        for host in record.hosts:
            if host.name not in self._posts:
                self._posts[host.name] = self._open(host)
            self._posts[host.name].follow(record)

    def _open(self, host: HostRecord) -> HostWorker:
        wake = threading.Event()
        controller, watch = self._open_host(host, wake.set)
        return HostWorker(controller, watch, wake, self._changed.set, host.name)

    def reports(self) -> Mapping[str, HostReport]:
        """Return what each host has reported last."""
        return MappingProxyType({name: post.report for name, post in self._posts.items() if post.report})

    def wait(self, timeout_s: float) -> None:
        """Wait until a report has changed, or for some time."""
        self._changed.wait(timeout_s)
        self._changed.clear()

    def close(self) -> None:
        """Leave the hosts alone; what runs there goes on until its lease is over."""
        for post in self._posts.values():
            post.begin_to_close()
        deadline = time.monotonic() + _JOIN_S
        for post in self._posts.values():
            post.close(deadline)
