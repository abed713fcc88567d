"""Speeds up the import of TensorFlow and Keras by deferring parts that few trainings use until they are used.

`import tensorflow` imports tf.lite, which imports JAX where it is installed. Keras imports its scikit-learn wrappers
and its matplotlib visualizations. With everything that these import in turn, they take a third of a worker's start
time. Only modules are listed here that are imported by the rest and whose attributes are not used at import time.

Both also import third-party libraries where they are installed: pandas, to check the types of fit's arguments; JAX, to
patch old versions for Orbax; requests and IPython, for rarely called functions. This takes another third. The importing
module gets a stand-in for such a library; no other module sees the stand-in.

Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import Any, NamedTuple

from ignite_tf_magic.after_import import StandInLoader

# Modules that TensorFlow's and Keras' own `__init__` import without using their attributes, as seen in TensorFlow 2.21
# and Keras 3.15. In other versions, a listed name that does not exist is never imported and has no effect.
DEFERRED = (
    "tensorflow._api.v2.lite",
    "tensorflow._api.v2.compat.v1.lite",
    "tensorflow._api.v2.compat.v2.lite",
    "keras.src.visualization",
    "keras.visualization",
    "keras.wrappers",
)


class Guest(NamedTuple):
    """A library that a module imports where it is installed, but seldom uses.

    Attributes:
        name: The library. The module gets a stand-in, which imports the library when an attribute is used.
        classes: Names of classes that the stand-in has without importing the library. They have no instances until
            some module imports the library.
        made_for: Another library. If it is not installed, importing `name` fails as if that were not installed either.
    """

    name: str
    classes: tuple[str, ...] = ()
    made_for: str | None = None


GUESTS = {
    "keras.src.callbacks.orbax_checkpoint": Guest("jax", made_for="orbax"),
    "keras.src.callbacks.remote_monitor": Guest("requests"),
    "keras.src.saving.file_editor": Guest("IPython"),
    "keras.src.trainers.data_adapters.array_slicing": Guest("pandas", ("Series", "DataFrame")),
    "tensorflow.python.distribute.failure_handling.failure_handling_util": Guest("requests"),
    "tensorflow.python.keras.callbacks": Guest("requests"),
}


def defer_imports(modules: Iterable[str] = DEFERRED, guests: Mapping[str, Guest] = GUESTS) -> MetaPathFinder:
    """Defer the execution of modules until one of their attributes is used. Modules imported before are not affected.

    Args:
        modules: Names of the modules to defer.
        guests: Libraries to replace by stand-ins, by the name of the module that imports them.

    Returns the finder that was inserted first in `sys.meta_path`. If executing a deferred module raises an error, each
    use of an attribute raises it again, as importing the module again would.
    """
    finder = _DeferringFinder(modules, guests)
    sys.meta_path.insert(0, finder)
    return finder


class _DeferringFinder(MetaPathFinder):
    """Finds modules through the finders after it, and makes their loaders execute them later."""

    def __init__(self, modules: Iterable[str], guests: Mapping[str, Guest]) -> None:
        self._modules = set(modules)
        self._guests = dict(guests)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        guest = self._guests.pop(fullname, None)
        if guest is None and fullname not in self._modules:
            return None
        self._modules.discard(fullname)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderWithout(spec.loader, guest) if guest else _DeferringLoader(spec.loader)
        return spec


class _LoaderWithout(StandInLoader):
    """Executes a module with its own loader, while a library that it imports is replaced by a stand-in."""

    def __init__(self, loader: Loader, guest: Guest) -> None:
        super().__init__(loader)
        self._guest = guest

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        guest = self._guest
        is_needed = guest.made_for is not None and find_spec(guest.made_for) is not None
        found = None if is_needed or guest.name in sys.modules else find_spec(guest.name)
        if found is None:
            self.loader.exec_module(module)
            return
        # With None in `sys.modules`, importing the library raises ImportError.
        stand_in = None if guest.made_for else _LibraryToCome(guest, found)
        sys.modules[guest.name] = stand_in  # type: ignore[assignment]
        try:
            self.loader.exec_module(module)
        finally:
            if sys.modules.get(guest.name) is stand_in:
                del sys.modules[guest.name]


class _LibraryToCome(ModuleType):
    """A stand-in for a library that is not imported yet. It has some of its classes; other attributes import it."""

    def __init__(self, guest: Guest, spec: ModuleSpec) -> None:
        super().__init__(guest.name)
        self.__spec__ = spec
        for each in guest.classes:
            setattr(self, each, _ClassToCome(each, (), {"__module__": guest.name}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks for these
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _ClassToCome(type):
    """A stand-in for a class. It has no instances until its library is imported, then those of the real class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._of_the_library())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._of_the_library())

    def _of_the_library(cls) -> tuple[type, ...]:
        found = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
        return (found,) if isinstance(found, type) and found is not cls else ()


class _DeferringLoader(StandInLoader):
    """Loads a module that its own loader executes when an attribute is used that it does not have yet."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__dict__["__deferred__"] = _Execution(self.loader)
        module.__class__ = _DeferredModule


class _DeferredModule(ModuleType):
    """A module that has only its name, file and path until it is executed."""

    def __getattr__(self, name: str) -> Any:
        execution: _Execution | None = self.__dict__.get("__deferred__")
        if execution is not None and not execution.has_made(self):  # accessed while being executed
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        return getattr(self, name)

    def __dir__(self) -> Iterable[str]:
        execution: _Execution | None = self.__dict__.get("__deferred__")
        if execution is not None:
            execution.has_made(self)
        return ModuleType.__dir__(self)


class _Execution:
    """The single execution of a module. Other threads wait until it has ended."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = RLock()
        self._is_under_way = False

    def has_made(self, module: ModuleType) -> bool:
        """Execute the module unless that was done; return False for calls from the module while it is executed."""
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
