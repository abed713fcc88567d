"""Waits for conditions that other processes or threads make true."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Generous: this limit only ends tests that would hang forever.
PATIENCE_S = 300.0
_PAUSE_S = 0.02


def until(
    condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str | Callable[[], object] = ""
) -> T:
    """Evaluate a condition repeatedly until it is true, and return its value.

    Args:
        condition: The condition. It may raise an exception to end the wait early.
        what: What the test waits for. A callable is called only on timeout, and should describe the state then.

    Raises:
        AssertionError: On timeout, with `what` and the condition's last value.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            told = what() if callable(what) else what
            raise AssertionError(
                f"waited {timeout_s:g} s in vain for {told or _source(condition)}; last: {found!r}"
            )
        time.sleep(_PAUSE_S)
    return found


def _source(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # for example for a method of an object written in C
        return repr(condition)
