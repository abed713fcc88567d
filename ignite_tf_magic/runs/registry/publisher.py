"""Keeps the registry row of a run that this process owns up to date, in a separate thread.

The registry is only an index: a run never waits for it, and never fails because of it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from dataclasses import replace

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import IgniteTfError, RecordChanged
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.registry.registry import Owner, Registry, Stored
from ignite_tf_magic.runs.timeouts import Timeouts

_REQUEST_S = 0.5
_LAST_WORD_S = 5.0


def new_owner() -> Owner:
    """Return this process as an owner."""
    return Owner(socket.gethostname(), os.getpid(), secrets.token_hex(8))


class Publisher(Closing):
    """Publishes the records of one run, and receives requests to its owner from the registry.

    Args:
        registry: The registry, which is closed with the publisher.
        run_id: The run's id.
        timeouts: Include the interval of the owner's heartbeats.

    Attributes:
        stop_asked: Whether a user asked to stop the run.
        trouble: Why the registry is not up to date; None if it is.
    """

    def __init__(self, registry: Registry, run_id: str, timeouts: Timeouts) -> None:
        self._registry = registry
        self._run_id = run_id
        self._timeouts = timeouts
        self._owner = new_owner()
        self._newest: RunRecord | None = None
        self._stored: Stored | None = None
        self._touched = float("-inf")
        self._wake = threading.Event()
        self._is_closing = False
        self.stop_asked = False
        self.trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name=f"registry-{run_id}", daemon=True)
        self._thread.start()

    def publish(self, record: RunRecord) -> None:
        """Publish a newer record. Does not block."""
        self._newest = record
        self._wake.set()

    def close(self) -> None:
        """Publish the last record; wait for that some seconds at most."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_LAST_WORD_S)

    def _work(self) -> None:
        with self._registry:  # closed here, because the last request may take longer than `close` waits
            is_last = False
            while not is_last:
                self._wake.wait(_REQUEST_S)
                self._wake.clear()
                is_last = self._is_closing
                try:
                    self._tell()
                    self.trouble = None
                except IgniteTfError as error:
                    self.trouble = str(error)

    def _tell(self) -> None:
        record = self._newest
        if record is None:
            return
        if time.monotonic() - self._touched >= self._timeouts.owner_beat_s and not record.state.has_ended:
            self._owner = replace(self._owner, counter=self._owner.counter + 1)
            self._registry.touch_owner(self._run_id, self._owner)
            self._touched = time.monotonic()
        if self._stored is None or self._stored.record.get("told") != record.version:
            self._write(record)
        if not record.state.has_ended:
            self.stop_asked = bool(self._registry.requests(self._run_id).get("stop")) or self.stop_asked

    def _write(self, record: RunRecord) -> None:
        content = {**record.to_json(), "told": record.version}
        while True:
            try:
                if self._stored is None:
                    self._stored = self._registry.create(content)
                else:
                    self._stored = self._registry.replace(self._stored, content)
                return
            except RecordChanged:  # by an earlier owner or a rebuild of the registry; overwrite it
                self._stored = self._registry.get(self._run_id)
