"""Makes names of TensorFlow 1 available: `tensorflow.contrib.ignite`, some functions, and job names."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ignite_tf_magic.after_import import after_import
from ignite_tf_magic.contrib.version_1 import add_methods_of_version_1
from ignite_tf_magic.session import registration

_ROOT = "tensorflow.contrib"
_OPS = f"{_ROOT}.ignite.python.ops"
_WITH_DATASET = (f"{_ROOT}.ignite", f"{_OPS}.ignite_dataset_ops")
_WITH_FILES = (f"{_ROOT}.ignite", f"{_OPS}.igfs_ops")
# Names in tensorflow.compat.v1 from before TensorFlow 1.0.
_OLDER = {
    "merge_all_summaries": "merge_all",
    "merge_summary": "merge",
    "scalar_summary": "scalar",
    "histogram_summary": "histogram",
}
_NAMES = {_ROOT, f"{_ROOT}.ignite.python", _OPS, *_WITH_DATASET, *_WITH_FILES}


def install() -> None:
    """Let this process import `tensorflow.contrib.ignite`, as scripts for TensorFlow 1 do. A second call does nothing.

    If TensorFlow itself has a module of that name, that one is used. No other part of `tensorflow.contrib` is
    available. `tf.device("/job:WORKER")`, the spelling of these scripts, then refers to the job "worker" of a run.
    Datasets get the methods of TensorFlow 1, such as `make_one_shot_iterator`.
    """
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
        after_import("tensorflow", _complete_tensorflow)
        # Importing this name creates another module than the attribute of `tensorflow`, and replaces the attribute.
        after_import("tensorflow.compat.v1", lambda: _complete(sys.modules["tensorflow.compat.v1"]))


def _complete_tensorflow() -> None:
    tf: Any = sys.modules["tensorflow"]
    tf.device = _by_small_letters(tf.device)
    add_methods_of_version_1()
    _complete(tf.compat.v1)


def _complete(module: Any) -> None:
    """Add to tensorflow.compat.v1 the older names, and uppercase job names, that scripts expect there."""
    for older, name in _OLDER.items():
        setattr(module, older, getattr(module.summary, name))
    module.device = _by_small_letters(module.device)


def _by_small_letters(device: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(device)
    def by_small_letters(name: Any) -> Any:
        if isinstance(name, str):
            name = re.sub(r"(?<=/job:)(WORKER|PS|CHIEF)(?=/|$)", lambda job: job[0].lower(), name)
        return device(name)

    return by_small_letters


class _OldNames(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, self, is_package=True) if fullname in _NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in _WITH_DATASET:
            module.__dict__["IgniteDataset"] = import_module("ignite_tf_magic.dataset.ignite").IgniteDataset
        if module.__name__ in _WITH_FILES:
            registration.register_or_warn()
