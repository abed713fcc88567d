"""Ends a worker's process on SIGTERM, and when the run's owner has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ignite_tf_magic.launch.groups import kill_group
from ignite_tf_magic.launch.lock import wait_until_gone
from ignite_tf_magic.runs.task import GRACE_S

_EXIT_SIGTERM = 128 + signal.SIGTERM
_ASK_AGAIN_S = 0.01


class Leaving:
    """Ends the process on SIGTERM, or when the run's owner has ended."""

    def __init__(self) -> None:
        self.asked = False
        self._owner_gone = False
        self._forking = threading.local()
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child
            )

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self.asked:  # a second SIGTERM must not interrupt a script that is saving
            self.asked = True
            raise SystemExit(_EXIT_SIGTERM)

    @contextlib.contextmanager
    def insisting(self) -> Iterator[None]:
        """Repeat SIGTERM if Python ignored it because it arrived in a finalizer, where exceptions have no effect."""
        previous = sys.unraisablehook

        def ask_again(unraisable: sys.UnraisableHookArgs) -> None:
            value = unraisable.exc_value
            if not (self.asked and isinstance(value, SystemExit) and value.code == _EXIT_SIGTERM):
                previous(unraisable)
                return
            self.asked = False
            timer = threading.Timer(_ASK_AGAIN_S, _send_sigterm)
            timer.daemon = True
            timer.start()

        sys.unraisablehook = ask_again
        try:
            yield
        finally:
            if sys.unraisablehook is ask_again:
                sys.unraisablehook = previous

    def _before_fork(self) -> None:
        """Block SIGTERM: a forked child loses signals that it receives before Python has set up its handlers."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _in_child(self) -> None:
        """Let SIGTERM end the script's own child processes at once, as multiprocessing expects."""
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._after_fork()

    def watch_owner(self, owner_lock: Path) -> None:
        """End the process once the lock is free, and kill its process group after the grace period."""
        threading.Thread(
            target=self._wait_for_owner, args=(owner_lock,), name="owner-watch", daemon=True
        ).start()

    def _wait_for_owner(self, owner_lock: Path) -> None:
        wait_until_gone(owner_lock)
        self._owner_gone = True
        with contextlib.suppress(OSError):  # a full disk must not keep the worker alive
            os.write(2, b"\nThe process that owned this run has ended; this worker ends too.\n")
        _send_sigterm()
        time.sleep(GRACE_S)
        kill_group(os.getpid())

    def sweep(self) -> None:
        """Kill the process group, this process included, if the owner has ended: no other process would do it."""
        if self._owner_gone:
            kill_group(os.getpid())


def _send_sigterm() -> None:
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)  # os.kill would end the process without its handlers
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # interrupts the main thread while it waits
