"""Watches a run's record from outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Change:
    time: float
    state: str
    generation: int
    waiting_for: str | None
    supervisor: str | None


class Observer:
    """Records the changes of a run's record in the files of its owner and hosts."""

    def __init__(self, paths: Callable[[], dict[str, Path]]) -> None:
        self._paths = paths
        self._stamps: dict[str, tuple[int, int]] = {}
        self._version = 0
        self.changes: list[Change] = []
        self.record: dict[str, Any] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for name, path in self._paths().items():
                with suppress(OSError, ValueError):
                    status = (path / "run.json").stat()
                    stamp = status.st_ino, status.st_mtime_ns
                    if self._stamps.get(name) != stamp:
                        self._take(json.loads((path / "run.json").read_bytes()))
                        self._stamps[name] = stamp

    def _take(self, record: dict[str, Any]) -> None:
        if record["version"] > self._version:
            self._version, self.record = record["version"], record
            change = Change(
                time.time(),
                record["state"],
                record["order"]["generation"],
                record["waiting_for"],
                record.get("supervisor"),
            )
            self.changes.append(change)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
