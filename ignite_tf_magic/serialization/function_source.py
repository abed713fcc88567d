"""A function of a notebook or a script as a script of its own: its source, and all that it uses.

Source is sent, and values in safe formats, not pickled code: so it can be read where it runs, tracebacks show its
lines, and hosts may have another version of Python. What the function uses by name is looked up as Python would:

- what a library defines is imported there;
- functions and classes of the notebook, or of modules beside it, come along as source, with what they use;
- modules are imported; all else is a value, which the caller sends.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import site
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ignite_tf_magic.errors import ConfigError

_PACKAGE = __name__.partition(".")[0]


@dataclass(slots=True)
class FunctionSource:
    """What a function needs to run elsewhere.

    Attributes:
        name: What the function is called in the script.
        imports: Statements.
        definitions: Sources of functions and classes, each behind what it needs when it is defined.
        values: What it uses beside them, by name.
    """

    name: str
    imports: dict[str, None] = field(default_factory=dict)
    definitions: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def script(self, last_line: str) -> str:
        """Return a script that defines all of it and ends with a line."""
        head = f"# Made by {_PACKAGE} from the function {self.name} and what it uses."
        return "\n".join([head, *self.imports, "", *self.definitions, "", last_line, ""])


def source_of(function: Any) -> FunctionSource:
    """Collect what a function needs to run elsewhere.

    Raises:
        ConfigError: It is no plain function, or its source is not to be had.
    """
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise ConfigError(
            f"{function!r} cannot be sent to workers: give a function that was made with `def`, outside of a class"
        )
    collector = _SourceCollector(FunctionSource(function.__name__))
    collector.define(function.__name__, function)
    return collector.found


class _SourceCollector:
    def __init__(self, found: FunctionSource) -> None:
        self.found = found
        self._names: dict[str, int] = {}  # what each name stands for, by id

    def define(self, name: str, thing: Any) -> None:
        """Bring a function or a class along, under this name."""
        source = _source(thing)
        self._take(thing.__name__, thing)
        for used in _global_names(source):
            self._bring(used, _namespace(thing), source)
        self.found.definitions.append(source)
        if name != thing.__name__:
            self.found.definitions.append(f"{name} = {thing.__name__}\n")

    def _take(self, name: str, thing: Any) -> None:
        if self._names.setdefault(name, id(thing)) != id(thing):
            raise ConfigError(
                f"the function {self.found.name} uses two things called {name}, of different modules: rename one"
            )

    def _bring(self, name: str, namespace: dict[str, Any], source: str) -> None:
        if name not in namespace or (name in vars(builtins) and namespace[name] is vars(builtins)[name]):
            return  # Python's own, or it fails there as it would here
        thing = namespace[name]
        if self._names.get(name) == id(thing):
            return
        self._take(name, thing)
        if isinstance(thing, ModuleType):
            self._import(name, thing, source)
        elif isinstance(thing, FunctionType | type) or inspect.isbuiltin(thing):
            if _is_installed(thing):
                self.found.imports[f"from {thing.__module__} import {thing.__name__} as {name}"] = None
            else:
                self.define(name, thing)
        else:
            self.found.values[name] = thing

    def _import(self, name: str, module: ModuleType, source: str) -> None:
        self.found.imports[f"import {module.__name__} as {name}"] = None
        for chain in _attribute_chains(source, name):
            path = module.__name__
            for part in chain:
                path = f"{path}.{part}"
                if path not in sys.modules:
                    break
                self.found.imports[f"import {path}"] = None


def _source(thing: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"the source of {thing.__name__} cannot be found, and workers need it: {error}. Write it in a cell or in a "
            "module, not with exec()"
        ) from error


def _namespace(thing: Any) -> dict[str, Any]:
    """Return all names that the source of a function or class can see outside of itself."""
    if isinstance(thing, type):
        found = dict(vars(sys.modules[thing.__module__]))
        for method in vars(thing).values():
            if isinstance(method, FunctionType):
                found |= _namespace(method)
        return found
    inner = inspect.unwrap(thing)
    cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
    return {**inner.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises when the enclosing function has not assigned the name yet
    except ValueError:
        return False
    return True


def _global_names(source: str) -> Iterator[str]:
    """Yield the names that a source uses and does not define, in the order of their first use."""
    found = set(_globals_of(symtable.symtable(source, "<function>", "exec"), is_top=True))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in found:
            found.discard(node.id)
            yield node.id


def _globals_of(table: symtable.SymbolTable, *, is_top: bool = False) -> Iterator[str]:
    for symbol in table.get_symbols():
        is_outside = not symbol.is_assigned() and not symbol.is_namespace() if is_top else symbol.is_global()
        if symbol.is_referenced() and is_outside:
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_of(child)


def _attribute_chains(source: str, name: str) -> Iterator[list[str]]:
    """Yield what follows a name as attributes: for a.b.c and a it is [b, c]."""
    for node in ast.walk(ast.parse(source)):
        chain: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.insert(0, inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id == name:
            yield chain


def _is_installed(thing: Any) -> bool:
    """Whether workers can import it: it is Python's own, a library's, or ours."""
    module = sys.modules.get(thing.__module__ or "")
    if module is None or thing.__module__ == "__main__":
        return False
    if thing.__module__.partition(".")[0] == _PACKAGE:
        return True
    file = getattr(module, "__file__", None)
    return file is None or any(Path(file).is_relative_to(place) for place in _library_places())


def _library_places() -> list[str]:
    paths = sysconfig.get_paths()
    return [
        paths["stdlib"],
        paths["platstdlib"],
        paths["purelib"],
        paths["platlib"],
        site.getusersitepackages(),
    ]
