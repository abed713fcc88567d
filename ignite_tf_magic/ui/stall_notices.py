"""Lines that say why a run does not go on, for whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from ignite_tf_magic.session import OutputChunk, Run, RunInfo, RunState

_LOOK_S = 1.0
_PATIENCE_S = 2.0
_UNDER_WAY = {RunState.FAILING: "is ending its workers", RunState.RESTARTING: "is being started again"}


def telling(run: Run, chunks: Iterable[OutputChunk], say: Callable[[str], None]) -> Iterator[OutputChunk]:
    """Pass a run's output on; while there is none, say why the run does not go on.

    Args:
        run: Whose output it is.
        chunks: The output, with chunks without text in its pauses.
        say: Takes a line: once for each cause, when it has lasted for two seconds.
    """
    notices, looked = StallNotices(), float("-inf")
    for chunk in chunks:
        now = time.monotonic()
        if not chunk.text and now - looked >= _LOOK_S:
            looked = now
            if line := notices.look(run.info(), now):
                say(line)
        yield chunk


class StallNotices:
    """Knows which causes were told. Has no clock."""

    def __init__(self) -> None:
        self._cause: str | None = None
        self._since = 0.0
        self._told: str | None = None

    def look(self, info: RunInfo, now: float) -> str | None:
        """Return a line when there is something new to tell; `now` is in seconds of a monotonic clock."""
        cause = _cause(info)
        if cause != self._cause:
            self._cause, self._since = cause, now
        if cause is None or cause == self._told or now - self._since < _PATIENCE_S:
            return None
        self._told = cause
        return f"ignite_tf_magic: {cause}"


def _cause(info: RunInfo) -> str | None:
    if info.waiting_for:
        return info.waiting_for if info.left_until is not None else f"the run waits: {info.waiting_for}"
    if info.state not in _UNDER_WAY:
        return None
    return f"the run {_UNDER_WAY[info.state]}" + (f": {info.reason}" if info.reason else "")
