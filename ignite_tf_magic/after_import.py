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
    """Call a function once when a module has been imported; at once when it has been already.

    The function's errors reach whoever imports the module. `before` is called when the import begins.
    """
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _NotifyingFinder(module, call, before))


def call_named(name: str) -> Any:
    """Call a function given as "package.module:function"; gives what it gives."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)()


class _NotifyingFinder(MetaPathFinder):
    """Finds one module, by the finders that come after it. To look for a module is not to import it."""

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
                # TensorFlow, which imports Keras, passes over these two.
                raise RuntimeError(f"what follows the import of {self._module} failed: {error}") from error


class StandInLoader(Loader):
    """Makes a module in place of its own loader, which the module has from then on.

    Attributes:
        loader: Its own.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own loader back, which has not executed it yet."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader


class _NotifyingLoader(StandInLoader):
    """Loads a module as its own loader does, and then calls a function."""

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
