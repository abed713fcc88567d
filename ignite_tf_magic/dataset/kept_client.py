"""Keeps a connected client open for the next pass.

Connecting to three nodes takes longer than reading 5,000 rows. TensorFlow never releases the Python functions of a
dataset, so a source can release what it keeps only after a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.settings.options import ConnectOptions

IDLE_S = 10.0


class KeptClient:
    """Lends a client to one pass at a time, and keeps it open for a while afterwards. Thread-safe.

    Args:
        options: How to reach the cluster.
        idle_s: Seconds for which an unused client stays open. Short, because an open connection keeps the embedded
            cluster from ending.
        on_idle: Called when that time is over.
    """

    def __init__(
        self, options: ConnectOptions, on_idle: Callable[[], None] = lambda: None, idle_s: float = IDLE_S
    ) -> None:
        self._options = options
        self._on_idle = on_idle
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._process = os.getpid()
        self._timer: threading.Timer | None = None

    def take(self) -> Client:
        """Return a client that knows the current nodes; the caller must give it back or close it.

        Raises:
            ConnectionFailed: No node answers.

        """
        client = self._withdraw()
        if client is None:
            return connect(self._options)
        try:
            client.nodes()
        except BaseException:
            client.close()
            raise
        return client

    def give_back(self, client: Client) -> None:
        """Keep a client that is no longer in use; close it if another one is kept already."""
        with self._lock:
            surplus = self._client is not None
            if not surplus:
                self._client, self._process = client, os.getpid()
                self._timer = threading.Timer(self._idle_s, self._go_idle)
                self._timer.daemon = True
                self._timer.start()
        if surplus:
            client.close()

    def _go_idle(self) -> None:
        client = self._withdraw()
        if client is not None:
            client.close()
            self._on_idle()

    def _withdraw(self) -> Client | None:
        with self._lock:
            client, self._client = self._client, None
            if self._process != os.getpid():
                client = None  # after a fork it belongs to the parent
            if self._timer:
                self._timer.cancel()
                self._timer = None
        return client
