"""Which workers may start warm, in a process that has imported TensorFlow before there was a task. Pure."""

from __future__ import annotations

import json
import re

from ignite_tf_magic.launch.jobs import EarlyProgram
from ignite_tf_magic.runs.task import DEFAULT_ENVIRONMENT, WorkerTask

_PARKED = "ignite_tf_magic.runs.parked"
_TENSORFLOW = re.compile(r"^\s*(?:import|from)\s+(?:tensorflow|keras)\b", re.MULTILINE)
# What a script does before it imports TensorFlow may tell it what to do; and libraries that are loaded before it.
_COMES_FIRST = re.compile(r"\b(?:environ|putenv|unsetenv|jax|torch|tf_keras|sys\.path)\b")
# What is another's in each run, and nothing is imported differently for.
_OF_A_RUN = re.compile(
    r"IGNITE_|TF_CONFIG$|(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)
# TensorFlow, and what a worker imports of this package as soon as it has it.
_IMPORTS = (
    "tensorflow",
    "ignite_tf_magic.session.registration",
    "ignite_tf_magic.training.keras_hooks",
    "ignite_tf_magic.dataset.ignite",
)
_HIDDEN = ("keras", "tensorflow")


def may_start_warm(script: str) -> bool:
    """Tell whether a script finds in a warm process what it finds in another one, as far as its text tells.

    One that sets variables, or imports libraries that are to be loaded before TensorFlow, starts cold.
    """
    return _TENSORFLOW.search(script) is not None and _COMES_FIRST.search(script) is None


def early_program(interpreter: str, task: WorkerTask) -> EarlyProgram:
    """Return what to start early for such a task of a later run."""
    own = {name: value for name, value in task.environment.items() if not _OF_A_RUN.match(name)}
    settings = {"environment": {**DEFAULT_ENVIRONMENT, **own}, "imports": _IMPORTS, "hidden": _HIDDEN}
    return EarlyProgram((interpreter, "-m", _PARKED), json.dumps(settings, sort_keys=True))
