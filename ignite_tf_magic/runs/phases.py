"""What a worker's process does until its training goes on, in a file beside its log, for whoever waits for it.

Standard library only: processes below a worker's may run any Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ignite_tf_magic.after_import import after_import

FILE = "IGNITE_TF_PHASE_FILE"  # the variable that names the file
IMPORTING = "importing TensorFlow"
SCRIPT = "running the script"
FIRST_STEP = "building the first step"
TRAINING = "training"
PHASES = (IMPORTING, SCRIPT, FIRST_STEP, TRAINING)

_SLOW_IMPORT = "tensorflow"


def tell_phase(phase: str) -> None:
    """Write down what this process does now. What cannot be written is not told."""
    path = os.environ.get(FILE)
    if not path:
        return
    part = f"{path}.{os.getpid()}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, phase.encode())
        finally:
            os.close(descriptor)
        os.replace(part, path)  # noqa: PTH105 - in a process that may know no pathlib yet
    except OSError:  # a full disk
        return


def call_after_import(module: str, call: Callable[[], None]) -> None:
    """Call a function when a module has been imported; tell of an import that takes long."""
    if module != _SLOW_IMPORT:
        after_import(module, call)
        return

    def imported() -> None:
        call()
        tell_phase(SCRIPT)

    after_import(module, imported, before=lambda: tell_phase(IMPORTING))
