"""Decides which workers may start warm: in a process that imported TensorFlow before the task existed. Pure."""

from __future__ import annotations

import json
import re

from ignite_tf_magic.launch.jobs import EarlyProgram
from ignite_tf_magic.runs.task import DEFAULT_ENVIRONMENT, WorkerTask

_PARKED = "ignite_tf_magic.runs.parked"
_TENSORFLOW = re.compile(r"^\s*(?:import|from)\s+(?:tensorflow|keras)\b", re.MULTILINE)
# If a script does one of these before it imports TensorFlow, the import may have another result.
_COMES_FIRST = re.compile(r"\b(?:environ|putenv|unsetenv|jax|torch|tf_keras|sys\.path)\b")
# Variables that differ in every run and do not affect imports.
_OF_A_RUN = re.compile(
    r"IGNITE_|TF_CONFIG$|(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)
# TensorFlow, and the modules of this package that a worker imports right after it.
_IMPORTS = (
    "tensorflow",
    "ignite_tf_magic.session.registration",
    "ignite_tf_magic.training.keras_hooks",
    "ignite_tf_magic.dataset.ignite",
)
_HIDDEN = ("keras", "tensorflow")


def may_start_warm(script: str) -> bool:
    """Return whether a script works the same in a warm process, as far as its text shows.

    Scripts that set environment variables, or import libraries that must be loaded before TensorFlow, start cold.
    """
    return _TENSORFLOW.search(script) is not None and _COMES_FIRST.search(script) is None


def early_program(interpreter: str, task: WorkerTask) -> EarlyProgram:
    """Return the program to start early for a task like this one in a later run."""
    own = {name: value for name, value in task.environment.items() if not _OF_A_RUN.match(name)}
    settings = {"environment": {**DEFAULT_ENVIRONMENT, **own}, "imports": _IMPORTS, "hidden": _HIDDEN}
    return EarlyProgram((interpreter, "-m", _PARKED), json.dumps(settings, sort_keys=True))
