"""How tests wait for what others do."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Only a guard against hanging for ever: machines are busy.
PATIENCE_S = 300.0
_PAUSE_S = 0.02


def until(
    condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str | Callable[[], object] = ""
) -> T:
    """Ask again and again until the answer is true, and give it.

    Args:
        condition: What is asked; it may raise to say that waiting is in vain.
        what: What is waited for; a call is made only when it was in vain, and says how things are then.

    Raises:
        AssertionError: It has not become true in time; with what was waited for, and the last answer.
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
    except (OSError, TypeError):  # as of a method of an object that is written in C
        return repr(condition)
