"""Reports what a worker's process does until its training runs, in a file beside its log.

Standard library only, because child processes of a worker may run any Python.
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
    """Write the current phase of this process to its file. Errors are ignored."""
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
        os.replace(part, path)  # noqa: PTH105 - some processes have not imported pathlib yet
    except OSError:  # a full disk
        return


def call_after_import(module: str, call: Callable[[], None]) -> None:
    """Call a function after a module has been imported. For TensorFlow, whose import is slow, report the phase too."""
    if module != _SLOW_IMPORT:
        after_import(module, call)
        return

    def imported() -> None:
        call()
        tell_phase(SCRIPT)

    after_import(module, imported, before=lambda: tell_phase(IMPORTING))
