"""Train TensorFlow on the Apache Ignite hosts that hold the data, from one notebook cell.

Use `%load_ext ignite_tf_magic` in a notebook, `ignite-tf` in a shell, and the names below in a script.
The names resolve on first use (PEP 562). Importing the package therefore loads neither TensorFlow nor
IPython, and a worker's bootstrap loads only the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import with_its_extra
from ignite_tf_magic.version import __version__

if TYPE_CHECKING:
    from ignite_tf_magic.dataset.array_batches import batches as batches
    from ignite_tf_magic.dataset.ignite import IgniteDataset as IgniteDataset
    from ignite_tf_magic.errors import IgniteTfError as IgniteTfError
    from ignite_tf_magic.session import load as load
    from ignite_tf_magic.session import predict as predict
    from ignite_tf_magic.session.facade import Session as Session
    from ignite_tf_magic.session.facade import open_session as connect
    from ignite_tf_magic.session.registration import register as register
    from ignite_tf_magic.session.run_values import result as result
    from ignite_tf_magic.training.keras_hooks import independent as independent
    from ignite_tf_magic.training.loops import Loop as Loop
    from ignite_tf_magic.training.loops import checkpoint as checkpoint
    from ignite_tf_magic.training.loops import strategy as strategy
    from ignite_tf_magic.training.parameters import config as config
    from ignite_tf_magic.training.step import all_rows as all_rows
    from ignite_tf_magic.training.task import task as task
    from ignite_tf_magic.ui.notebook.magics import load_ipython_extension as load_ipython_extension
    from ignite_tf_magic.ui.notebook.run_function import run as run

_HOME_OF_NAME = {
    "IgniteDataset": "ignite_tf_magic.dataset.ignite",
    "IgniteTfError": "ignite_tf_magic.errors",
    "Loop": "ignite_tf_magic.training.loops",
    "Session": "ignite_tf_magic.session.facade",
    "connect": "ignite_tf_magic.session.facade:open_session",
    "all_rows": "ignite_tf_magic.training.step",
    "batches": "ignite_tf_magic.dataset.array_batches",
    "checkpoint": "ignite_tf_magic.training.loops",
    "config": "ignite_tf_magic.training.parameters",
    "independent": "ignite_tf_magic.training.keras_hooks",
    "load": "ignite_tf_magic.session",
    "load_ipython_extension": "ignite_tf_magic.ui.notebook.magics",
    "predict": "ignite_tf_magic.session",
    "register": "ignite_tf_magic.session.registration",
    "result": "ignite_tf_magic.session.run_values",
    "run": "ignite_tf_magic.ui.notebook.run_function",
    "strategy": "ignite_tf_magic.training.loops",
    "task": "ignite_tf_magic.training.task",
}
# TensorFlow imports Keras, and a worker's hooks then import the modules that define these names. That fails if one of
# these modules is only half imported. So TensorFlow is imported before them.
_AFTER_TENSORFLOW = frozenset({"IgniteDataset", "Loop", "all_rows", "checkpoint", "independent", "strategy"})

__all__ = [
    "IgniteDataset",
    "IgniteTfError",
    "Loop",
    "Session",
    "__version__",
    "all_rows",
    "batches",
    "checkpoint",
    "config",
    "connect",
    "independent",
    "load",
    "load_ipython_extension",
    "predict",
    "register",
    "result",
    "run",
    "strategy",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, other = _HOME_OF_NAME[name].partition(":")
    try:
        if name in _AFTER_TENSORFLOW:
            import_module("tensorflow")
        found = getattr(import_module(module), other or name)
    except ModuleNotFoundError as error:
        raise with_its_extra(error, f"ignite_tf_magic.{name}") or error from None
    if name in _AFTER_TENSORFLOW:
        found.__module__ = __name__  # so functions sent to workers refer to it by this module's name
    return found
