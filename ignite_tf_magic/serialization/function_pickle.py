"""Turns a function of a notebook or a script into a script for workers, which contains the function as a cloudpickle.

The pickle includes, by value, what the function uses: wrappers, defaults, closures, classes of the notebook, and
modules beside the notebook. Definitions of libraries are imported where the function runs. Reading a pickle runs code.
The pickle is therefore part of the script, which a run signs and ships, and is never read from the cluster. Bytecode
depends on the minor version of Python: workers must have the same one.
"""

from __future__ import annotations

import base64
import dis
import functools
import hashlib
import inspect
import io
import linecache
import os
import site
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization import sent_function

MAX_BYTES = 64 << 20
_PACKAGE = __name__.partition(".")[0]
# The type of functions that lru_cache wraps. Python pickles them by name, wherever they are defined.
_CACHED = type(functools.lru_cache(int))
_FRAMEWORKS = ("tensorflow", "keras")
_LINE_CHARS = 120


@dataclass(frozen=True, slots=True)
class FunctionPickle:
    """A function, ready to be sent.

    Attributes:
        name: Name of the function, for people.
        data: The pickle.
        digest: SHA-256 of the sources of the function and of all functions and classes that are sent with it.
        imports_tensorflow: Whether the function uses TensorFlow or Keras by name.
    """

    name: str
    data: bytes
    digest: str
    imports_tensorflow: bool

    def script(self, last_line: str) -> str:
        """Return a script that loads the function as `_function` and ends with `last_line`."""
        text = base64.b64encode(self.data).decode()
        lines = "\n".join(text[at : at + _LINE_CHARS] for at in range(0, len(text), _LINE_CHARS))
        return "\n".join(
            [
                f"# Made by {_PACKAGE} from the function {self.name}, which travels as a pickle.",
                *(["import tensorflow"] if self.imports_tensorflow else []),
                f"from {sent_function.__name__} import unpickle_function as _unpickled",
                f'_function = _unpickled({self.name!r}, {sent_function.VERSION!r}, """\n{lines}\n""")',
                last_line,
                "",
            ]
        )


def pickle_function(function: Any) -> FunctionPickle:
    """Pickle a function with everything that it uses.

    Raises:
        ConfigError: The function cannot be called, is asynchronous or a generator, is too large, or uses something that
            cannot be sent, such as an open file. The message names it.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function):
        raise ConfigError(f"{function!r} cannot be sent to workers: pass a function")
    inner = inspect.unwrap(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigError(
            f"{name} is an `async def`, which workers do not wait for: pass a function that calls asyncio.run(...)"
        )
    if inspect.isgeneratorfunction(inner):
        raise ConfigError(
            f"{name} is a generator, which cannot be sent back: pass a function that returns a list"
        )
    with _own_modules_by_value():
        try:
            data, digest = _pickled(function)
        except Exception as error:
            raise ConfigError(f"cannot send {name}: {_culprit(function) or _reason(error)}") from error
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"cannot send {name}: it has {len(data) / 2**20:,.0f} MiB with all that it uses, but at most "
                f"{MAX_BYTES >> 20} MiB can be sent; {_largest(function)}. Load large data into a cache "
                "(ignite_tf_magic.load), or write it to igfs:// and send its address"
            )
    return FunctionPickle(name, data, digest, _uses_frameworks(inner))


class _StaysHere(Exception):
    """An object has no meaning in another process."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler that keeps and collects the names of source files.

    Attributes:
        files: Source files of the pickled code.
        sources: Sources of the functions and classes pickled by value, in the order of pickling.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.files: set[str] = set()
        self.sources: list[str] = []

    def reducer_override(self, obj: Any) -> Any:
        """Refuse sockets and open files, which cloudpickle would send as their content. Send cached functions by value.

        The standard streams are sent by name.
        """
        for stream in ("stdout", "stderr", "stdin"):
            if obj is getattr(sys, stream):
                return getattr, (sys, stream)
        if isinstance(obj, (FunctionType, type)) and _is_defined_here(obj):
            self.sources.append(_source_of(obj))
        if isinstance(obj, CodeType):
            self.files.add(obj.co_filename)
            make, arguments = self.dispatch_table[CodeType](obj)
            return _code_of_file, (make, arguments, obj.co_filename)
        if isinstance(obj, io.IOBase) and not isinstance(obj, (io.BytesIO, io.StringIO)):
            raise _StaysHere(f"an open file ({getattr(obj, 'name', obj)!r}): open it in the function")
        if isinstance(obj, socket.socket):
            raise _StaysHere("an open socket: connect in the function")
        if (
            isinstance(obj, _CACHED)
            and cloudpickle.cloudpickle._should_pickle_by_reference(obj.__wrapped__) is False
        ):
            return _cached_again, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _code_of_file(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


def _is_defined_here(thing: Any) -> bool:
    """Return whether workers cannot import a function or class."""
    own = ("__main__", *cloudpickle.list_registry_pickle_by_value())
    return thing.__module__ in own or "<locals>" in thing.__qualname__


def _source_of(thing: Any) -> str:
    """Return the source of a function or class, or its name and bytecode if it has no source."""
    code = getattr(thing, "__code__", None)
    try:
        return inspect.getsource(code or thing)
    except (OSError, TypeError):
        return f"{thing.__qualname__} {code.co_code!r}" if code else thing.__qualname__


def _cached_again(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _pickled(thing: Any) -> tuple[bytes, str]:
    """Pickle an object with the source files of its code. Return the pickle and a digest of the sources."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.dump(thing)
        data = file.getvalue()
    sources = {each: "".join(linecache.getlines(each)) for each in sorted(pickler.files)}
    digest = hashlib.sha256("\0".join(pickler.sources).encode()).hexdigest()
    return cloudpickle.dumps((data, sources)), digest


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """Pickle by value, in the context, modules that workers cannot import: those that belong to no library."""
    places = _places()
    own = [module for module in list(sys.modules.values()) if _is_own(module, places)]
    registered = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in own if module.__name__ not in registered]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: Any, places: tuple[str, ...]) -> bool:
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if (
        not isinstance(module, ModuleType)
        or name == "__main__"
        or name.partition(".")[0] == _PACKAGE
        or not file
    ):
        return False
    return sys.modules.get(name) is module and not str(file).startswith(places)


def _places() -> tuple[str, ...]:
    """Return the directories where libraries are installed, as prefixes of file names."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [*(paths[name] for name in names), site.getusersitepackages()]
    return tuple(f"{each}{os.sep}" for each in found)


def _parts(function: Any) -> dict[str, Any]:
    """Return the objects that a Python function uses, by name; for other callables, their attributes."""
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return dict(getattr(inner, "__dict__", {}))
    used = {name for code in _codes(inner.__code__) for name in code.co_names}
    found = {name: inner.__globals__[name] for name in used if name in inner.__globals__}
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = inner.__defaults__ or ()
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount]
    return found | dict(zip(names[len(names) - len(defaults) :], defaults, strict=False))


def _culprit(function: Any) -> str | None:
    """Return a description of the first object that a function uses and that cannot be sent, or None."""
    for name, thing in _parts(function).items():
        try:
            _pickled(thing)
        except Exception as error:  # noqa: BLE001 - whatever a class raises when it is asked for its parts
            return f"it uses {name}, {_reason(error)}"
    return None


def _largest(function: Any) -> str:
    sizes = {name: len(_pickled(thing)[0]) for name, thing in _parts(function).items()}
    name = max(sizes, key=lambda each: sizes[each], default="the function itself")
    return f"the largest is {name} with {sizes.get(name, 0) / 2**20:,.0f} MiB"


def _reason(error: Exception) -> str:
    if isinstance(error, _StaysHere):
        return str(error)
    return f"which cannot leave this process: {error}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _uses_frameworks(function: Any) -> bool:
    if not isinstance(function, FunctionType):
        return False
    for code in _codes(function.__code__):
        imported = {each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}
        modules = {
            getattr(function.__globals__.get(name), "__name__", "")
            for name in code.co_names
            if isinstance(function.__globals__.get(name), ModuleType)
        }
        if any(str(name).partition(".")[0] in _FRAMEWORKS for name in imported | modules):
            return True
    return False
