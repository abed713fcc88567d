"""Implements the functions that _filesystem.c calls through ctypes.

A callback must not raise: ctypes would drop the exception, and C would continue with garbage. So every
callback catches all exceptions. Its reply is valid only after it has set the code, which it does last.
"""

from __future__ import annotations

import ctypes
import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import Any, Protocol, cast

from ignite_tf_magic.tfplugin.codes import Code, code_of, describe
from ignite_tf_magic.tfplugin.handler import FileSystem, ReadFile, WriteFile

MAGIC = 0x69746D66
ABI = 1

_LOG = logging.getLogger(__name__)
_address, _uri, _number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64

# Makes a memoryview of C memory. A ctypes array would need a copy, or a new type for each length.
_view_of_memory = ctypes.PYFUNCTYPE(ctypes.py_object, _address, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_READ_ONLY, _WRITABLE = 0x100, 0x200


_MAX_SHOWN = 200


class Reply(ctypes.Structure):
    """The `reply_t` of _filesystem.c."""

    _fields_ = [
        ("number", ctypes.c_int64),
        ("mtime_ns", ctypes.c_int64),
        ("is_directory", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("text", ctypes.c_void_p),
        ("text_bytes", ctypes.c_int64),
    ]


class HandlerTable(ctypes.Structure):
    """The `table_t` of _filesystem.c."""

    _fields_ = [
        ("open_read", ctypes.CFUNCTYPE(None, _address, _uri)),
        ("open_write", ctypes.CFUNCTYPE(None, _address, _uri, ctypes.c_int)),
        ("stat", ctypes.CFUNCTYPE(None, _address, _uri)),
        ("list", ctypes.CFUNCTYPE(None, _address, _uri)),
        ("change", ctypes.CFUNCTYPE(None, _address, ctypes.c_int, _uri, _uri)),
        ("read", ctypes.CFUNCTYPE(None, _address, _number, ctypes.c_uint64, _address, _number)),
        ("append", ctypes.CFUNCTYPE(None, _address, _number, _address, _number)),
        ("on_file", ctypes.CFUNCTYPE(None, _address, _number, ctypes.c_int)),
    ]


class Control(ctypes.Structure):
    """The `control` of _filesystem.c. `stop` blocks without the GIL; the other functions do not block."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("abi", ctypes.c_uint32),
        ("start", ctypes.PYFUNCTYPE(None, _address, ctypes.POINTER(HandlerTable))),
        ("offer", ctypes.PYFUNCTYPE(ctypes.c_int, _uri)),
        ("give_text", ctypes.PYFUNCTYPE(ctypes.c_int, _address, _uri, _number)),
        ("stop", ctypes.CFUNCTYPE(ctypes.c_int, _number)),
        ("forked", ctypes.PYFUNCTYPE(None)),
    ]


class Change(IntEnum):
    """The actions of `change` on a path."""

    MAKE_DIRECTORY = 0
    MAKE_DIRECTORIES = 1
    REMOVE_FILE = 2
    REMOVE_DIRECTORY = 3
    REMOVE_TREE = 4
    RENAME = 5
    COPY = 6


class FileCall(IntEnum):
    """The actions of `on_file` on an open file. DROP comes last, even if the file was not closed."""

    TELL = 0
    FLUSH = 1
    SYNC = 2
    CLOSE = 3
    DROP = 4


class GiveText(Protocol):
    """A function that copies bytes into the reply at an address."""

    def __call__(self, reply: int, text: bytes, num_bytes: int) -> int:
        """Copy the text. Return 0, or another number if C has no memory for it."""
        ...


def make_table(handlers: Mapping[str, FileSystem], give_text: GiveText) -> HandlerTable:
    """Make the table of functions for C. The caller must keep the table alive forever, because C may call it.

    Args:
        handlers: The handler of each scheme. It is looked up at each call, so changes take effect.
        give_text: `Control.give_text` of the calling library.
    """
    bridge = _Bridge(handlers, give_text)
    types: dict[str, Any] = dict(cast("list[tuple[str, Any]]", HandlerTable._fields_))
    return HandlerTable(**{name: kind(bridge.guarded(name)) for name, kind in types.items()})


@dataclass(frozen=True, slots=True)
class _Opened:
    file: ReadFile | WriteFile | None  # None: closed, but TensorFlow has not released it yet
    uri: str


class _Bridge:
    """The callbacks, named as in `HandlerTable`. They run in many threads, and rely on atomic dict operations."""

    def __init__(self, handlers: Mapping[str, FileSystem], give_text: GiveText) -> None:
        self._handlers = handlers
        self._give_text = give_text
        self._opened: dict[int, _Opened] = {}
        self._handles = count(1)

    def guarded(self, name: str) -> Callable[..., None]:
        """Return a callback that turns every exception into a code and a message."""
        function = getattr(self, name)

        def call(reply_at: int, *arguments: Any) -> None:
            try:
                reply = Reply.from_address(reply_at)
                function(reply, *arguments)
                reply.code = Code.OK
            except BaseException as error:  # noqa: BLE001 - C gets errors only as codes
                # An exception in here, such as an interrupt, leaves the code unset, which C detects.
                with suppress(BaseException):
                    message = describe(error, self._tried(name, arguments))
                    self._give(reply_at, message.encode("utf-8", "replace"))
                    Reply.from_address(reply_at).code = code_of(error)

        return call

    def open_read(self, reply: Reply, uri: bytes) -> None:
        handler, path = self._find(uri)
        reply.number = self._keep(handler.open_read(path), path)

    def open_write(self, reply: Reply, uri: bytes, append: int) -> None:
        handler, path = self._find(uri)
        reply.number = self._keep(handler.open_write(path, append=bool(append)), path)

    def stat(self, reply: Reply, uri: bytes) -> None:
        handler, path = self._find(uri)
        stat = handler.stat(path)
        reply.number, reply.mtime_ns = stat.length, stat.mtime_ns
        reply.is_directory = stat.is_directory

    def list(self, reply: Reply, uri: bytes) -> None:
        handler, path = self._find(uri)
        names = handler.list_directory(path)
        ended = [name + "\0" for name in names]
        self._give(ctypes.addressof(reply), "".join(ended).encode())
        reply.number = len(ended)

    def change(self, _reply: Reply, what: int, uri: bytes, target: bytes) -> None:
        handler, path = self._find(uri)
        match Change(what):
            case Change.MAKE_DIRECTORY:
                handler.make_directory(path)
            case Change.MAKE_DIRECTORIES:
                handler.make_directories(path)
            case Change.REMOVE_FILE:
                handler.remove_file(path)
            case Change.REMOVE_DIRECTORY:
                handler.remove_directory(path)
            case Change.REMOVE_TREE:
                handler.remove_tree(path)
            case Change.RENAME:
                handler.rename(path, target.decode())
            case Change.COPY:
                handler.copy(path, target.decode())

    def read(self, reply: Reply, handle: int, offset: int, space: int, num_bytes: int) -> None:
        file = cast("ReadFile", self._file(handle))
        with _view_of_memory(space, num_bytes, _WRITABLE) as view:
            reply.number = file.read_into(offset, view)

    def append(self, _reply: Reply, handle: int, data: int, num_bytes: int) -> None:
        file = cast("WriteFile", self._file(handle))
        with _view_of_memory(data, num_bytes, _READ_ONLY) as view:
            file.append(view)

    def on_file(self, reply: Reply, handle: int, what: int) -> None:
        if what == FileCall.DROP:
            self._drop(handle)
            return
        file = cast("WriteFile", self._file(handle))
        match FileCall(what):
            case FileCall.TELL:
                reply.number = file.tell()
            case FileCall.FLUSH:
                file.flush()
            case FileCall.SYNC:
                file.sync()
            case FileCall.CLOSE:
                self._opened[handle] = _Opened(None, self._opened[handle].uri)
                file.close()

    def _drop(self, handle: int) -> None:
        """Close a file that TensorFlow releases without closing it: any reader, or a forgotten writer."""
        opened = self._opened.pop(handle, None)
        if opened is None or opened.file is None:
            return
        try:
            opened.file.close()
        except BaseException as error:  # noqa: BLE001 - TensorFlow accepts no status here
            _LOG.warning("%s", describe(error, f"close {opened.uri}"))

    def _find(self, uri: bytes) -> tuple[FileSystem, str]:
        path = uri.decode()
        return self._handlers[path.partition("://")[0]], path

    def _keep(self, file: ReadFile | WriteFile, uri: str) -> int:
        handle = next(self._handles)
        self._opened[handle] = _Opened(file, uri)
        return handle

    def _file(self, handle: int) -> ReadFile | WriteFile:
        opened = self._opened.get(handle)
        if opened is None or opened.file is None:
            raise OSError(errno.EBADF, "the file is closed")
        return opened.file

    def _give(self, reply_at: int, text: bytes) -> None:
        if self._give_text(reply_at, text, len(text)):
            raise MemoryError

    def _tried(self, name: str, arguments: tuple[Any, ...]) -> str:
        if name == "change":
            name, arguments = Change(arguments[0]).name.lower(), arguments[1:]
        elif name == "on_file":
            name = FileCall(arguments[1]).name.lower()
        if isinstance(arguments[0], int):
            opened = self._opened.get(arguments[0])
            where = _short(opened.uri) if opened else "a file"
        else:
            uris = [uri.decode("utf-8", "replace") for uri in arguments if isinstance(uri, bytes) and uri]
            where = " to ".join(map(_short, uris))
        return f"{name.replace('_', ' ')} {where}"


def _short(uri: str) -> str:
    """Return a path without the end of a long one, which would hide the error that follows."""
    return uri if len(uri) <= _MAX_SHOWN else f"{uri[:_MAX_SHOWN]}..."
