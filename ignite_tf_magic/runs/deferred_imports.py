"""Parts of TensorFlow and Keras that hardly a training uses are imported when they are used, not with the rest.

`import tensorflow` brings tf.lite, for which it imports JAX where that is installed; Keras brings its wrappers for
scikit-learn, and pictures of images by matplotlib, with all that these import in turn: a third of the time that a
worker needs until it is ready. Only modules are named here that the rest imports and asks for nothing.

Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import Any

from ignite_tf_magic.after_import import StandInLoader

# What TensorFlow's and Keras' own `__init__` import and ask for nothing, as seen in TensorFlow 2.21 and Keras 3.15. A
# version that has none of a name never imports it: nothing is deferred then, and all else is as before.
DEFERRED = (
    "tensorflow._api.v2.lite",
    "tensorflow._api.v2.compat.v1.lite",
    "tensorflow._api.v2.compat.v2.lite",
    "keras.src.visualization",
    "keras.visualization",
    "keras.wrappers",
)


def defer_imports(modules: Iterable[str] = DEFERRED) -> MetaPathFinder:
    """Have modules executed when somebody asks one for an attribute, from now on; those that are imported stay.

    Returns what was put in front of `sys.meta_path`. An error in a module reaches whoever asks it for something, each
    time, as importing it again would.
    """
    finder = _DeferringFinder(modules)
    sys.meta_path.insert(0, finder)
    return finder


class _DeferringFinder(MetaPathFinder):
    """Finds modules by the finders that come after it, and has them executed later."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = set(modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in self._modules:
            return None
        self._modules.remove(fullname)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


class _DeferringLoader(StandInLoader):
    """Makes a module that is executed by its own loader when an attribute is asked for that it does not have."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__dict__["__deferred__"] = _Execution(self.loader)
        module.__class__ = _DeferredModule


class _DeferredModule(ModuleType):
    """A module that has its name, file and path, and nothing else until it is executed."""

    def __getattr__(self, name: str) -> Any:
        execution: _Execution | None = self.__dict__.get("__deferred__")
        if execution is not None and not execution.has_made(self):  # it asks itself while it is executed
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        return getattr(self, name)

    def __dir__(self) -> Iterable[str]:
        execution: _Execution | None = self.__dict__.get("__deferred__")
        if execution is not None:
            execution.has_made(self)
        return ModuleType.__dir__(self)


class _Execution:
    """The one time that a module is executed: other threads wait for its end."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = RLock()
        self._is_under_way = False

    def has_made(self, module: ModuleType) -> bool:
        """Execute the module unless that has been done; False to whom the module itself has called meanwhile."""
        with self._lock:
            if self._is_under_way:
                return False
            if "__deferred__" in module.__dict__:
                self._is_under_way = True
                try:
                    self._loader.exec_module(module)
                finally:
                    self._is_under_way = False
                module.__class__ = ModuleType
                del module.__dict__["__deferred__"]
        return True
