"""Reports why a run is stalled to the person who watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from ignite_tf_magic.session import OutputChunk, Run, RunInfo, RunState

_LOOK_S = 1.0
_PATIENCE_S = 2.0
_UNDER_WAY = {RunState.FAILING: "is ending its workers", RunState.RESTARTING: "is being started again"}


def telling(run: Run, chunks: Iterable[OutputChunk], say: Callable[[str], None]) -> Iterator[OutputChunk]:
    """Yield a run's output unchanged; in its pauses, report why the run is stalled.

    Args:
        run: The run.
        chunks: The output of the run, with empty chunks in pauses.
        say: Shows a line. It is called once for each cause that has lasted for two seconds.
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
    """The causes that were already reported. Uses no clock."""

    def __init__(self) -> None:
        self._cause: str | None = None
        self._since = 0.0
        self._told: str | None = None

    def look(self, info: RunInfo, now: float) -> str | None:
        """Return a line if there is a new cause to report; `now` is in seconds of a monotonic clock."""
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
