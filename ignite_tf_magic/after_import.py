"""Calls a function as soon as a module has been imported, without importing it. Standard library only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(module: str, call: Callable[[], None], before: Callable[[], None] | None = None) -> None:
    """Call a function once, after a module is imported, or now if it already is.

    The function's errors propagate to the code that imports the module. `before` is called when the import begins.
    """
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _NotifyingFinder(module, call, before))


def call_named(name: str) -> Any:
    """Call a function given as "package.module:function", and return its result."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)()


class _NotifyingFinder(MetaPathFinder):
    """A finder for one module that delegates to the later finders.

    Looking for the module does not import it.
    """

    def __init__(self, module: str, call: Callable[[], None], before: Callable[[], None] | None) -> None:
        self._module = module
        self._call = call
        self._before = before
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._module or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._imported, self._before)
        return spec

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            try:
                self._call()
            except (ImportError, AttributeError) as error:
                # TensorFlow ignores these two errors when it imports Keras.
                raise RuntimeError(f"what follows the import of {self._module} failed: {error}") from error


class StandInLoader(Loader):
    """A loader that creates a module and then hands it back to the module's own loader.

    Attributes:
        loader: The module's own loader.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own loader, without executing the module."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader


class _NotifyingLoader(StandInLoader):
    """A loader that loads a module with its own loader and then calls a function."""

    def __init__(
        self, loader: Loader, call: Callable[[], None], before: Callable[[], None] | None = None
    ) -> None:
        super().__init__(loader)
        self._call = call
        self._before = before

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if self._before is not None:
            self._before()
        self.loader.exec_module(module)
        self._call()
