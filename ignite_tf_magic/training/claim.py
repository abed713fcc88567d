"""The training lock, which lets one process of a worker's command train at a time.

The first process that imports Keras takes the lock, and holds it until it ends. Then another process may take it, as in
a shell script that trains twice.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.launch.lock import HeldLock, holder_pid, is_held

if TYPE_CHECKING:
    from ignite_tf_magic.training.group import WorkerGroup

_VARIABLE = "IGNITE_TF_CLAIM_FILE"


class Claim:
    """The training lock of this process's worker. A process has one object of this class."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._lock: HeldLock | None = None
        self._mutex = threading.Lock()

    def take(self) -> bool:
        """Take the lock, and return whether this process holds it. The lock is released when the process ends.

        Outside of a run there is no lock file, and the result is True.
        """
        path = os.environ.get(_VARIABLE)
        with self._mutex:
            if not path or self._lock is not None:
                return True
            if is_held(Path(path)):
                return False
            try:
                self._lock = HeldLock(Path(path))
            except BlockingIOError:
                return False
            return True

    @property
    def number(self) -> int:
        """The number of processes that held the lock before this one, in the same generation of the run."""
        with self._mutex:
            if self._number is None:
                self._number = _count(Path(f"{os.environ[_VARIABLE]}.count")) if self._lock else 0
            return self._number


CLAIM = Claim()


def name_in_run(name: str, group: WorkerGroup) -> str:
    """Return a training's name in the run, unique even if a command runs several programs in turn.

    All workers must call it; the chief's number of the program counts. After a restart, a training finds its checkpoint
    by this name.
    """
    if not os.environ.get(_VARIABLE):
        return name
    (number,) = group.from_chief([np.int64(CLAIM.number)])
    return f"program-{int(number)}-{name}" if int(number) else name


def _count(path: Path) -> int:
    """Return the number of earlier calls for a file. The caller must hold the lock."""
    text = path.read_text() if path.exists() else ""
    number = int(text) if text.isdigit() else 0
    path.write_text(str(number + 1))
    return number


def why_not() -> str:
    """Return why this process cannot take part in the training."""
    holder = holder_pid(Path(os.environ[_VARIABLE]))
    command = " ".join(sys.argv)[:100]
    return (
        f"process {os.getpid()} ({command}) does not take part for this worker, because process "
        f"{holder or '?'} does. Only one process of a worker takes part at a time, the first that imports "
        "keras; another one can when that has ended"
    )


def refuse_fit(model_class: Any, reason: str, is_independent: Callable[[], bool]) -> None:
    """Make `fit` raise ConfigError in a process that cannot train with the other workers.

    Otherwise each worker would silently train a model of its own. Inside `independent()`, `fit` is allowed.
    """

    def check(model: Any) -> None:
        del model
        if not is_independent():
            raise ConfigError(
                f"{reason}. To train a model in this process alone, put `with "
                "ignite_tf_magic.independent():` around fit"
            )

    _check_before_fit(model_class, check)


def stay_alone(model_class: Any, reason: str, has_strategy: Callable[[Any], bool]) -> None:
    """Make `fit` warn that it trains the model in this process alone, unless the model has its own strategy."""

    def check(model: Any) -> None:
        if not has_strategy(model):
            warnings.warn(reason, stacklevel=3)

    _check_before_fit(model_class, check)


def _check_before_fit(model_class: Any, check: Callable[[Any], None]) -> None:
    original = model_class.fit

    @functools.wraps(original)
    def fit(model: Any, *arguments: Any, **options: Any) -> Any:
        check(model)
        return original(model, *arguments, **options)

    model_class.fit = fit
