"""Keeps this client's lease, sweeps garbage, and disconnects when idle.

The lease shows that the client is alive, and what it reads.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.igfs import journal, layout
from ignite_tf_magic.igfs.collector import Collector
from ignite_tf_magic.igfs.journal import LEASE, Lease
from ignite_tf_magic.igfs.store import Store

RENEW_S = 4.0
LEASE_S = 20.0
SWEEP_S = 30.0
IDLE_S = 10.0
_MAX_SWEPT = 200
_END_S = 5.0
_RANDOM = random.SystemRandom()


class LeaseManager:
    """One client's lease, and a thread that renews it while files are open.

    Thread-safe; after a fork the child is a client of its own.
    """

    def __init__(self, store: Store, collector: Collector) -> None:
        self._store = store
        self._collector = collector
        self._reset()

    def _reset(self) -> None:
        self._wake = threading.Condition()
        self._process = os.getpid()
        self._client = layout.new_id()
        self._counter = 0
        self._users = 0
        self._reading: Counter[int] = Counter()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._has_garbage = False
        self._last_used = time.monotonic()

    def close(self) -> None:
        """End the thread and release the lease, at once or when the open files are closed."""
        self._notice_fork()
        with self._wake:
            self._closed = True
            self._wake.notify_all()
            thread = None if self._users else self._thread
        if thread and thread is not threading.current_thread():
            thread.join(_END_S)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep the connections open during a `with` block."""
        self.begin()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> int:
        """Make sure that this client has a lease until `leave`, and return the client's id."""
        self.begin()
        try:
            with self._wake:
                if not self._counter:
                    self._renew()
                return self._client
        except BaseException:
            self.leave()
            raise

    @property
    def is_used(self) -> bool:
        """Whether files are open or operations are running."""
        return bool(self._users) and self._process == os.getpid()

    @property
    def has_lease(self) -> bool:
        """Whether others know already that this client is alive."""
        return bool(self._counter) and self._process == os.getpid()

    def leave(self) -> None:
        """Undo one `enter`."""
        self._notice_fork()
        with self._wake:
            self._users = max(self._users - 1, 0)
            self._last_used = time.monotonic()
            if self._closed and not self._users:
                self._wake.notify_all()

    def hold(self, writers: frozenset[int]) -> None:
        """Protect the blocks of these writers from the sweeper until `let_go`."""
        self._notice_fork()
        with self._wake:
            self._reading.update(writers)

    def let_go(self, writers: frozenset[int]) -> None:
        """Undo one `hold`."""
        self._notice_fork()
        with self._wake:
            self._reading.subtract(writers)
            self._reading += Counter()

    def garbage_was_made(self) -> None:
        """Look for garbage at the next renewal, and until there is none."""
        self._has_garbage = True

    def _notice_fork(self) -> None:
        if self._process != os.getpid():
            self._reset()  # the parent's thread is not here, and its lock may be held forever

    def begin(self) -> None:
        """Keep the connections open until `leave`."""
        self._notice_fork()
        with self._wake:
            self._users += 1
            if self._thread is None:
                self._closed = False
                self._thread = threading.Thread(
                    target=self._run, name=f"igfs-{self._store.name}", daemon=True
                )
                self._thread.start()

    def _renew(self) -> None:
        lease = journal.encode(Lease(self._counter + 1, frozenset(self._reading)))
        self._store.prepare_to_write()
        self._store.journal.put(journal.key(LEASE, self._client), lease, LEASE_S)
        self._counter += 1

    def _run(self) -> None:
        next_sweep = time.monotonic() + _RANDOM.uniform(0, SWEEP_S)
        while not self._wait():
            try:
                with self._wake:
                    if self._counter:
                        self._renew()
                if self._has_garbage or (self._counter and time.monotonic() > next_sweep):
                    next_sweep = time.monotonic() + SWEEP_S
                    self._has_garbage = self._collector.sweep(_MAX_SWEPT) > 0
            except IgniteTfError:
                continue  # no connection now: the next renewal, or another client, will do this thread's work
        self._hang_up()

    def _wait(self) -> bool:
        """Wait for the next renewal; return whether it is time to end."""
        with self._wake:
            if not self._closed or self._users:
                self._wake.wait(RENEW_S)
            unused = not self._users and not self._has_garbage
            idle = unused and time.monotonic() - self._last_used > IDLE_S
            if idle or (self._closed and not self._users):
                self._thread = None
                return True
            return False

    def _hang_up(self) -> None:
        with self._wake:
            if self._thread is not None or self._users:
                return  # another user came meanwhile
            had_lease, self._counter = bool(self._counter), 0
            try:
                if had_lease and self._store.is_connected:
                    self._store.journal.remove(journal.key(LEASE, self._client))
                    self._client = layout.new_id()  # a returning client counts its renewals from one again
                if self._has_garbage:
                    self._collector.sweep(_MAX_SWEPT)
            except IgniteTfError:
                pass  # the server drops the lease by itself, and other clients find the garbage
            self._store.close()
