"""Runs first in every Python process below a worker's process, because this directory is the first on PYTHONPATH.

This lets commands other than `python script.py` be workers: a shell script, an interpreter with an absolute path, a
console script. The process may run another version of Python and be unrelated to the run. So this module only waits for
the import of a module that the run has hooks for. Standard library only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_DIRECTORY)))
_PACKAGE = "ignite_tf_magic"
# Importing these does not make a process a worker. Their hooks are set up when another hooked module is imported.
_EVERYBODYS = ("random", "numpy")
# Errors on importing this package where the interpreter is too old for it or lacks dependencies.
_UNUSABLE = (ImportError, SyntaxError, TypeError, AttributeError)


class _Waiting:
    """A finder that finds nothing, but registers the calls that follow imports when a hooked module is imported."""

    def __init__(self, calls: Mapping[str, str]) -> None:
        self._calls = calls

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in self._calls or fullname in _EVERYBODYS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        _set_up(self._calls)
        return find_spec(fullname)


class _PackageFinder:
    """Finds this package if the interpreter does not have it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != _PACKAGE:
            return None
        from importlib.util import spec_from_file_location

        folder = os.path.join(_ROOT, _PACKAGE)
        start = os.path.join(folder, "__init__.py")
        return spec_from_file_location(fullname, start, submodule_search_locations=[folder])


def _set_up(calls: Mapping[str, str]) -> None:
    from functools import partial
    from importlib import import_module

    sys.meta_path.append(_PackageFinder())
    try:
        call_after_import = import_module(f"{_PACKAGE}.runs.phases").call_after_import
        import_module(f"{_PACKAGE}.runs.deferred_imports").defer_imports()
    except _UNUSABLE as error:
        _warn(error)
        return
    for module, call in calls.items():
        call_after_import(module, partial(_call, call))


def _call(name: str) -> None:
    from importlib import import_module

    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except _UNUSABLE as error:
        _warn(error)
        return
    found()


def _warn(error: Exception) -> None:
    import warnings

    words = (
        f"{sys.executable} cannot run ignite_tf_magic ({type(error).__name__}: {error}), so it trains "
        "alone, not with the other workers of this run. Install what is missing there, or choose another "
        "interpreter"
    )
    warnings.warn(words, stacklevel=2)
    claim = os.environ.get("IGNITE_TF_CLAIM_FILE")
    if claim:  # this file makes the worker fail, unless another process of it takes part
        try:
            with open(f"{claim}.alone", "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{words}\n")
        except OSError:  # a full disk must not stop the script's import
            pass


def _run_hidden() -> None:
    """Run the sitecustomize module that this one shadows, if there is one."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _DIRECTORY]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


_calls = dict(each.split("=") for each in os.environ.get("IGNITE_TF_AFTER_IMPORT", "").split(",") if each)
if _calls:
    sys.meta_path.insert(0, _Waiting(_calls))
if __name__ == "sitecustomize":
    _run_hidden()
