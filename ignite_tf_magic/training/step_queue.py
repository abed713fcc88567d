"""Runs training steps on workers asynchronously, with one thread in the chief for each worker.

If a worker's process is gone, only its thread waits for it, and the other workers continue. The lost step is made
again. If the worker reads its own rows, its replacement process repeats the step. If the chief handed out the batch,
any worker does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.training.chief_client import Servers
from ignite_tf_magic.training.remote_step import StepReport
from ignite_tf_magic.training.step_sources import Parts, StepSource

Make = Callable[[int, str, Parts], StepReport]

_LOOK_S = 1.0  # the interval at which a wait is interrupted to check that its worker still exists
_SUSPICIOUS_S = 5.0
_MAX_LOSSES = 10
# Error texts of a TensorFlow server that has replaced another one, besides UNAVAILABLE and ABORTED.
_OF_ANOTHER_PROCESS = (
    *("unknown device", "Primary device is not remote", "Unable to find the relevant tensor remote_handle"),
    *("Unable to find a context_id", "nor a name of a function registered"),
)


@dataclass
class _Driver:
    """The state of one worker's thread. If the thread waits in vain, one with the next number replaces it."""

    worker: int
    number: int = 0
    asked_at: float | None = None  # when it began to wait for the worker
    is_recovering: bool = False
    num_losses: int = 0  # in succession, without a finished step in between


@dataclass
class _Counts:
    """The numbers of steps in an epoch."""

    begun: int = 0
    under_way: int = 0
    given: int = 0
    budget: int | None = None


class StepQueue:
    """Runs steps on workers, and returns their reports one by one.

    Args:
        servers: The workers and parameter servers.
        source: The source of the batches.
        make: Runs a step with a batch on a worker, and waits for it.
        max_ahead: The maximum number of begun steps whose reports have not been returned yet.
    """

    def __init__(self, servers: Servers, source: StepSource, make: Make, max_ahead: int) -> None:
        self._servers = servers
        self._source = source
        self._make = make
        self._max_ahead = max_ahead
        self._changed = threading.Condition()
        self._reports: deque[StepReport] = deque()
        self._counts = _Counts()
        self._failure: BaseException | None = None
        self._is_open = False
        self._is_closed = False
        self._drivers = [_Driver(worker) for worker in range(len(servers.workers))]
        for driver in self._drivers:
            self._start(driver)

    # Called by the chief's own thread

    def begin_epoch(self, budget: int | None) -> None:
        """Let workers begin up to `budget` steps, or with None as many as there are batches."""
        with self._changed:
            self._counts = _Counts(budget=budget)
            self._source.begin_epoch()
            self._is_open = True
            self._changed.notify_all()

    def wants_more(self) -> bool:
        """Return whether the chief should add a batch to the source."""
        with self._changed:
            counts = self._counts
            num_there = counts.begun + self._source.num_waiting
            is_left = not self._source.is_over() and (counts.budget is None or num_there < counts.budget)
            return is_left and num_there - counts.given < self._max_ahead

    def change_source(self, change: Callable[[], None]) -> None:
        """Change the source under the lock, and wake the threads."""
        with self._changed:
            change()
            self._changed.notify_all()

    def next(self) -> StepReport | None:
        """Return the next report, or None after the last one of the epoch.

        Blocks until a further step is done or none is left, so `is_over` then knows whether this report is the last.

        Raises:
            tf.errors.OpError: A step failed.
            ServerGone: A parameter server is gone.
        """
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                is_over = self._is_over()
                if self._reports and (len(self._reports) > 1 or is_over):
                    self._counts.given += 1
                    self._changed.notify_all()
                    return self._reports.popleft()
                if is_over:
                    return None
                self._wait()

    def is_over(self) -> bool:
        """Return whether all reports of the epoch have been returned."""
        with self._changed:
            return not self._reports and self._is_over()

    def go_on(self) -> None:
        """Let steps begin again after a pause."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def pause(self) -> list[StepReport]:
        """Let no more steps begin, wait for the running ones, and return the remaining reports."""
        with self._changed:
            self._is_open = False
            while self._counts.under_way:
                if self._failure is not None:
                    raise self._failure
                self._wait()
            found = list(self._reports)
            self._counts.given += len(found)
            self._reports.clear()
            return found

    def close(self) -> None:
        """End the threads after their current steps. Does not wait for them."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _is_over(self) -> bool:
        counts = self._counts
        if counts.under_way:
            return False
        is_spent = counts.budget is not None and counts.begun >= counts.budget
        return is_spent or not self._is_open or self._source.is_over()

    def _wait(self) -> None:
        self._changed.wait(_LOOK_S)
        for driver in self._drivers:
            self._look_after(driver)

    def _look_after(self, driver: _Driver) -> None:
        """Stop waiting for a worker whose process was replaced. The new process does not know the request."""
        if driver.asked_at is None or time.monotonic() - driver.asked_at < _SUSPICIOUS_S:
            return
        driver.asked_at = time.monotonic()
        self._changed.release()
        try:
            self._servers.check_ps()
            is_known = tf_private.is_known(self._servers.workers[driver.worker])
        except tf.errors.OpError:
            is_known = False
        finally:
            self._changed.acquire()
        if not is_known and driver.asked_at is not None:
            self._put_back(driver)
            driver.number += 1
            driver.is_recovering = True
            self._start(driver)

    # The threads

    def _start(self, driver: _Driver) -> None:
        name = f"worker-{driver.worker}-{driver.number}"
        threading.Thread(target=self._drive, args=(driver, driver.number), name=name, daemon=True).start()

    def _drive(self, driver: _Driver, number: int) -> None:
        try:
            while self._begin(driver, number):
                if driver.is_recovering:
                    self._recover(driver, number)
                else:
                    self._do(driver, number)
        except BaseException as error:  # noqa: BLE001 - the chief's own thread raises it
            self._fail(driver, number, error)

    def _begin(self, driver: _Driver, number: int) -> bool:
        """Wait until there is work. Return False if this thread must end."""
        with self._changed:
            while not self._is_closed and driver.number == number:
                if driver.is_recovering:
                    return True
                counts = self._counts
                is_free = counts.begun - counts.given < self._max_ahead
                is_left = counts.budget is None or counts.begun < counts.budget
                if self._is_open and is_free and is_left and self._source.has(driver.worker):
                    self._source.take(driver.worker)
                    counts.begun += 1
                    counts.under_way += 1
                    driver.asked_at = time.monotonic()
                    return True
                self._changed.wait()
            return False

    def _do(self, driver: _Driver, number: int) -> None:
        worker, device = driver.worker, self._servers.workers[driver.worker]
        try:
            batch = self._source.batch(worker, device)
            report = None if batch is None else self._make(worker, device, batch)
        except tf.errors.OpError as error:
            driver.num_losses += 1
            if not is_loss(error) or driver.num_losses > _MAX_LOSSES:
                raise
            self._servers.check_ps()
            with self._changed:
                if driver.number == number:
                    self._put_back(driver)
                    driver.is_recovering = True
            return
        with self._changed:
            if driver.number == number:
                self._finish(driver, report)

    def _finish(self, driver: _Driver, report: StepReport | None) -> None:
        driver.asked_at = None
        driver.num_losses = 0
        self._counts.under_way -= 1
        if report is None:
            self._counts.begun -= 1
            self._source.ended(driver.worker)
        else:
            self._source.done(driver.worker)
            self._reports.append(report)
        self._changed.notify_all()

    def _put_back(self, driver: _Driver) -> None:
        """Have the step of a lost worker made again."""
        driver.asked_at = None
        self._counts.under_way -= 1
        self._counts.begun -= 1
        self._source.lost(driver.worker)
        self._changed.notify_all()

    def _recover(self, driver: _Driver, number: int) -> None:
        is_back = self._servers.rejoin(driver.worker, lambda: not self._is_closed and driver.number == number)
        with self._changed:
            if is_back and driver.number == number:
                driver.is_recovering = False
                self._changed.notify_all()

    def _fail(self, driver: _Driver, number: int, error: BaseException) -> None:
        with self._changed:
            if driver.number == number:
                if driver.asked_at is not None:
                    driver.asked_at = None
                    self._counts.under_way -= 1
                self._failure = error
                self._changed.notify_all()


def is_loss(error: tf.errors.OpError) -> bool:
    """Return whether an error means that a server's process is gone or was replaced."""
    if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)):
        return True
    return any(text in str(error) for text in _OF_ANOTHER_PROCESS)
