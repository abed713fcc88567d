"""The end of a worker's process that is asked to leave, or that nobody is left to ask."""

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
    """Ends the process when it is asked to, or when the run's owner has ended."""

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
        if not self.asked:  # once: a second SIGTERM must not disturb a script that is saving
            self.asked = True
            raise SystemExit(_EXIT_SIGTERM)

    @contextlib.contextmanager
    def insisting(self) -> Iterator[None]:
        """Have an end that Python ignored asked for again: a finalizer that SIGTERM falls into cannot raise."""
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
        """Hold SIGTERM back: Python forgets what a forked child receives before its signals are set up."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _in_child(self) -> None:
        """Let SIGTERM end the script's own children at once, as multiprocessing expects."""
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._after_fork()

    def watch_owner(self, owner_lock: Path) -> None:
        """End the process once nobody holds the lock any more, and its group after the grace."""
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
        """Kill what the process has started, and itself, if the run's owner has gone: nobody else is left to do it."""
        if self._owner_gone:
            kill_group(os.getpid())


def _send_sigterm() -> None:
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)  # os.kill would end the process without its handlers
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # goes to the main thread, and interrupts its waiting
