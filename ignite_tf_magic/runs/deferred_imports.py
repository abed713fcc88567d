"""Parts of TensorFlow and Keras that hardly a training uses are imported when they are used, not with the rest.

`import tensorflow` brings tf.lite, for which it imports JAX where that is installed; Keras brings its wrappers for
scikit-learn, and pictures of images by matplotlib, with all that these import in turn: a third of the time that a
worker needs until it is ready. Only modules are named here that the rest imports and asks for nothing.

They also import libraries of others, where they are installed: pandas, to compare what a fit is given with its classes;
JAX, to mend old ones for Orbax; requests and IPython, for what hardly anybody calls. That is another third. A module
gets a stand-in of such a library, and nobody else does.

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


class Guest(NamedTuple):
    """A library that a module imports where it is installed, to use it seldom.

    Attributes:
        name: The library; the module is given one that imports it when it is asked for something.
        classes: What it may be asked for without that: classes, of which there is nothing before somebody imports them.
        made_for: Another library. Where that is not installed, it is as if this one were not either.
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
    """Have modules executed when somebody asks one for an attribute, from now on; those that are imported stay.

    Args:
        modules: Those.
        guests: What other modules import and can do without, by the names of these.

    Returns what was put in front of `sys.meta_path`. An error in a module reaches whoever asks it for something, each
    time, as importing it again would.
    """
    finder = _DeferringFinder(modules, guests)
    sys.meta_path.insert(0, finder)
    return finder


class _DeferringFinder(MetaPathFinder):
    """Finds modules by the finders that come after it, and has them executed later."""

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
    """Executes a module as its own loader does, with something small in place of a library that it imports."""

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
        # None: to import it is an ImportError.
        stand_in = None if guest.made_for else _LibraryToCome(guest, found)
        sys.modules[guest.name] = stand_in  # type: ignore[assignment]
        try:
            self.loader.exec_module(module)
        finally:
            if sys.modules.get(guest.name) is stand_in:
                del sys.modules[guest.name]


class _LibraryToCome(ModuleType):
    """Has some classes of a library that nobody has imported yet; asked for anything else, it imports that."""

    def __init__(self, guest: Guest, spec: ModuleSpec) -> None:
        super().__init__(guest.name)
        self.__spec__ = spec
        for each in guest.classes:
            setattr(self, each, _ClassToCome(each, (), {"__module__": guest.name}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what imports ask of a module
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _ClassToCome(type):
    """A class that has no instances before its library has been imported, and then those of the library's own."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._of_the_library())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._of_the_library())

    def _of_the_library(cls) -> tuple[type, ...]:
        found = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
        return (found,) if isinstance(found, type) and found is not cls else ()


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
