"""Finds modules under the names that they had in TensorFlow 1: `tensorflow.contrib.ignite`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ignite_tf_magic.session import registration

_ROOT = "tensorflow.contrib"
_OPS = f"{_ROOT}.ignite.python.ops"
_WITH_DATASET = (f"{_ROOT}.ignite", f"{_OPS}.ignite_dataset_ops")
_WITH_FILES = (f"{_ROOT}.ignite", f"{_OPS}.igfs_ops")
_NAMES = {_ROOT, f"{_ROOT}.ignite.python", _OPS, *_WITH_DATASET, *_WITH_FILES}


def install() -> None:
    """Let this process import `tensorflow.contrib.ignite`, as scripts for TensorFlow 1 do. A second call does nothing.

    A module of that name that TensorFlow has itself comes first. Of `tensorflow.contrib` there is nothing else.
    """
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())


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
