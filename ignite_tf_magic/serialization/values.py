"""Converts values that notebooks and workers send to each other to bytes in safe formats. Pure.

The bytes are a zip archive of uncompressed members: index.json and the large values, which are arrays as .npy, tables
as Arrow streams, and bytes. In the index, None, bool, short text, finite floats and 64-bit integers represent
themselves. Any other value is a list: a tag, then its parts, which are nodes of the index, too. Reading runs no code.

Values of unknown types are refused. So are values of a class that derives from a known one, because they would come
back as the known one.
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import io
import itertools
import json
import math
import re
import reprlib
import struct
import types
import uuid
import zipfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.lib import format as npy

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization.arrow_messages import check_stream

MAX_BYTES = 256 * 1024 * 1024
MAX_DEPTH = 100
_FORMAT = 1
_INDEX = "index.json"
_LARGE = 1024  # longer bytes get a member of their own; the base64 of others is short text
_MAX_HEADER = 64 * 1024  # of .npy; a structured dtype makes it long
_FREE_CELLS = 1_000_000  # limit of cells in columns of type null, which take no bytes
_SURROGATE = re.compile("[\ud800-\udfff]")
# A function that splits a value into its parts, and one that makes it from the parts again.
_Kind = tuple[Callable[[Any], Any], Callable[..., Any]]
# Types of columns that may be far larger than their bytes, and types that call code of whoever registered the type.
_ODD_COLUMN = re.compile(r"view|union|run_end|extension|<>|\[0\]|: null|<.*dictionary")


def encode(values: Mapping[str, Any], *, max_bytes: int = MAX_BYTES) -> bytes:
    """Convert variables to bytes that `decode` converts back to the same types.

    Supported are None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, namespaces, range,
    slice, the types of datetime (with timezone or ZoneInfo), Decimal, UUID, paths, NumPy's arrays and scalars,
    DataFrame, Series and Index of pandas, and pyarrow.Table. Tensors and variables of TensorFlow and Keras come back as
    their numpy(). Arrays of objects other than str and bytes are refused, and so are pandas tables that Arrow would
    change. An object that occurs twice comes back as two objects, and an index of times loses its `freq`.

    Args:
        values: The variables by name.
        max_bytes: Limit of the result, at most MAX_BYTES.

    Raises:
        ConfigError: A variable has no safe form, or the variables are too large together. The message says what to do.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        writer = _ValueWriter(archive, min(max_bytes, MAX_BYTES))
        writer.write(values)
    writer.check(buffer.tell())
    return buffer.getvalue()


def decode(data: bytes) -> dict[str, Any]:
    """Convert the bytes of `encode` back to variables. Malicious bytes do no harm.

    Raises:
        ConfigError: The bytes are damaged, or pandas or pyarrow is needed and missing.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _ValueReader(archive).read()
    except Exception as error:
        raise ConfigError(f"cannot read the values that were sent: {_reason(error)}") from error


class _RefusedValue(Exception):
    """A value has no safe form. Each container that holds it adds its step at the front of `path`."""

    path = ""


class _TooLarge(Exception):
    """A single variable is larger than the limit."""


class _ValueWriter:
    """Collects variables in an archive. Beyond the limit it only measures them, to find the largest."""

    def __init__(self, archive: zipfile.ZipFile, bound: int) -> None:
        self._archive = archive
        self._bound = bound
        self._numbers = itertools.count()
        self._sizes: dict[str, int] = {}
        self._size = 0

    def write(self, values: Mapping[str, Any]) -> None:
        """Write all variables."""
        nodes = [self._variable(name, value) for name, value in values.items()]
        self.check(sum(self._sizes.values()))
        index = json.dumps({"format": _FORMAT, "values": nodes}, ensure_ascii=False, allow_nan=False)
        self._archive.writestr(zipfile.ZipInfo(_INDEX), index)

    def check(self, total: int) -> None:
        """Raise ConfigError if `total` bytes are over the limit."""
        if total <= self._bound:
            return
        name, size = max(self._sizes.items(), key=lambda item: item[1], default=("", 0))
        raise ConfigError(
            f"the variables have more than the {self._bound / 2**20:,.1f} MiB that can be sent; the largest is {name} "
            f"with at least {size / 2**20:,.1f} MiB: load it into a cache (ignite_tf_magic.load), or write it to "
            "igfs:// and send its address"
        )

    def _variable(self, name: str, value: Any) -> Any:
        self._size, nodes = 0, []
        try:
            nodes = [self._node(name, 0), self._node(value, 0)]
        except _RefusedValue as refused:
            raise ConfigError(f"cannot send {name}{refused.path[:200]}: {refused}") from refused.__cause__
        except _TooLarge:
            pass
        self._sizes[name] = self._size
        return nodes

    def _node(self, value: Any, depth: int) -> Any:
        if _is_plain(value):
            self._claim(len(value.encode()) if isinstance(value, str) else 8)
            return value
        if type(value) is bytes and len(value) > _LARGE:
            return ["blob", self._member(value)]
        if depth == MAX_DEPTH:
            raise _RefusedValue(f"it contains itself, or has more than {MAX_DEPTH} levels; send it flat")
        tag = _tag(value)
        node: list[Any] = [tag]
        for number, part in enumerate(self._parts(tag, value)):
            try:
                node.append(self._node(part, depth + 1))
            except _RefusedValue as refused:
                refused.path = _step(value, number) + refused.path
                raise
        return node

    def _parts(self, tag: str, value: Any) -> Any:
        size = int(value.memory_usage().sum() if tag == "pandas.DataFrame" else getattr(value, "nbytes", 0))
        self._claim(size + 64)
        try:
            return _KINDS[tag][0](value)
        except Exception as error:
            raise _RefusedValue(f"{_reason(error)}; convert it (astype), or send it as lists") from error
        finally:
            self._size -= size  # the bytes are counted when the parts are written

    def _member(self, data: bytes) -> str:
        self._claim(len(data))
        name = f"{next(self._numbers)}{'.npy' if data.startswith(npy.MAGIC_PREFIX) else ''}"
        if sum(self._sizes.values()) + self._size <= self._bound:
            self._archive.writestr(zipfile.ZipInfo(name), data)
        return name

    def _claim(self, size: int) -> None:
        self._size += size
        if self._size > self._bound:
            raise _TooLarge


class _ValueReader:
    """Reads an archive. Each member is read only once: a small archive cannot expand to large values."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {info.filename: info for info in archive.infolist()}
        infos = self._members.values()
        if sum(info.file_size for info in infos) > MAX_BYTES:
            raise ValueError("they are too large")
        if any(info.compress_type or info.compress_size != info.file_size for info in infos):
            raise ValueError("they are compressed")

    def read(self) -> dict[str, Any]:
        """Return all variables."""
        index = json.loads(self._take(_INDEX))
        if index["format"] != _FORMAT:
            raise ValueError(f"format {index['format']!r}, not {_FORMAT}")
        values = {self._value(name, 0): self._value(node, 0) for name, node in index["values"]}
        if self._members or not all(isinstance(name, str) for name in values):
            raise ValueError("parts that nothing refers to")
        return values

    def _take(self, name: str) -> bytes:
        return self._archive.read(self._members.pop(name))

    def _value(self, node: Any, depth: int) -> Any:
        if _is_plain(node):
            return node
        if not isinstance(node, list) or depth > MAX_DEPTH:
            raise ValueError("the index has another structure")
        tag, *parts = node
        values = [self._value(part, depth + 1) for part in parts]
        return self._take(*values) if tag == "blob" else _KINDS[tag][1](*values)


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= 2 * _LARGE and not _SURROGATE.search(value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool or (type(value) is int and -(2**63) <= value < 2**63)


def _tag(value: Any) -> str:
    kind = type(value)
    root, name = kind.__module__.partition(".")[0], kind.__qualname__
    if isinstance(value, np.generic) and kind is value.dtype.type and value.dtype.kind not in "SU":
        return "scalar"
    if root in ("tensorflow", "keras") and hasattr(value, "numpy"):
        return "tensor"
    tag = "pandas.Index" if root == "pandas" and name.endswith("Index") else f"{root}.{name}"
    if tag not in _KINDS:
        raise _RefusedValue(
            f"it is of type {tag.removeprefix('builtins.')}, not a plain Python value, array or table; send what it is "
            "made of, but write functions and classes into the script, and save models to igfs://"
        )
    return tag


def _step(value: Any, number: int) -> str:
    if isinstance(value, dict):
        return f"[{reprlib.repr(list(value)[number // 2])}]"
    return f"[{number}]" if isinstance(value, list | tuple) else ""


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is missing here: pip install 'ignite_tf_magic[data]'"
    return f"{' '.join(str(error).split())[:300]} ({type(error).__name__})"


def _descr(dtype: Any) -> Any:
    descr = None if dtype.hasobject else npy.dtype_to_descr(dtype)
    if descr is None or len(str(descr)) > _MAX_HEADER // 2 or npy.descr_to_dtype(descr) != dtype:
        raise TypeError(f"the dtype {reprlib.repr(dtype)} cannot be sent safely")
    return descr


def _array_parts(array: Any) -> list[Any]:
    if array.dtype.char == "O" and {type(item) for item in array.flat} <= {str, bytes}:
        return [array.shape, *array.ravel().tolist()]
    _descr(array.dtype)
    file = io.BytesIO()
    npy.write_array(file, array, (3, 0), allow_pickle=False)
    return [file.getvalue()]


def _array(first: Any, *items: Any) -> Any:
    if isinstance(first, bytes):
        return npy.read_array(io.BytesIO(first), allow_pickle=False, max_header_size=_MAX_HEADER)
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(first)


def _scalar(descr: Any, data: bytes) -> Any:
    dtype = npy.descr_to_dtype(descr)
    _descr(dtype)
    return np.ndarray((), dtype, bytearray(data))[()]


def _frame_bytes(frame: Any) -> bytes:
    import pandas as pd
    import pyarrow as pa

    table = pa.Table.from_pandas(frame)
    # Raises if Arrow changed the table: it has its own types for objects, and only text as labels.
    pd.testing.assert_frame_equal(frame, table.to_pandas(), check_exact=True, check_freq=False)
    return _table_bytes(table)


def _table_bytes(table: Any) -> bytes:
    import pyarrow as pa

    _check_columns(table)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _table(data: bytes) -> Any:
    import pyarrow as pa

    check_stream(data)
    table = pa.ipc.open_stream(data).read_all()
    _check_columns(table)
    table.validate(full=True)
    return table


def _check_columns(table: Any) -> None:
    kinds = [str(kind) for kind in table.schema.types]
    odd = {kind for kind in kinds if _ODD_COLUMN.search(kind)}
    if odd or table.num_rows * kinds.count("null") > _FREE_CELLS:
        raise TypeError(f"columns of {', '.join(odd) or 'null'} cannot be sent safely")


def _time_kind(kind: Any) -> _Kind:
    return (
        lambda value: [value.replace(tzinfo=None, fold=0).isoformat(), value.tzinfo, value.fold],
        lambda text, zone, fold: kind.fromisoformat(text).replace(tzinfo=zone, fold=fold),
    )


def _namespace_kind(kind: Any) -> _Kind:
    def made(fields: dict[str, Any]) -> Any:
        found = kind()
        for name, value in fields.items():
            setattr(found, name, value)
        return found

    return lambda value: [vars(value)], made


_PATH: _Kind = (lambda path: [path.as_posix()], Path)
_SPAN: _Kind = (lambda value: [value.start, value.stop, value.step], range)
_KINDS: dict[str, _Kind] = {
    "builtins.int": (lambda value: [hex(value)], lambda text: int(text, 16)),
    "builtins.float": (lambda value: [struct.pack(">d", value)], lambda data: struct.unpack(">d", data)[0]),
    "builtins.str": (
        lambda value: [value.encode("utf-8", "surrogatepass")],
        lambda data: data.decode("utf-8", "surrogatepass"),
    ),
    "builtins.bytes": (lambda value: [base64.b64encode(value).decode()], base64.b64decode),
    "builtins.complex": (lambda value: [value.real, value.imag], complex),
    "builtins.list": (list, lambda *parts: list(parts)),
    "builtins.tuple": (list, lambda *parts: parts),
    "builtins.set": (list, lambda *parts: set(parts)),
    "builtins.frozenset": (list, lambda *parts: frozenset(parts)),
    "builtins.dict": (
        lambda value: [*itertools.chain.from_iterable(value.items())],
        lambda *parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    ),
    "argparse.Namespace": _namespace_kind(argparse.Namespace),
    "types.SimpleNamespace": _namespace_kind(types.SimpleNamespace),
    "builtins.range": _SPAN,
    "builtins.slice": (_SPAN[0], slice),
    "datetime.date": (lambda value: [value.isoformat()], dt.date.fromisoformat),
    "datetime.time": _time_kind(dt.time),
    "datetime.datetime": _time_kind(dt.datetime),
    "datetime.timedelta": (lambda value: [value.days, value.seconds, value.microseconds], dt.timedelta),
    "datetime.timezone": (lambda zone: zone.__getinitargs__(), dt.timezone),
    "zoneinfo.ZoneInfo": (lambda zone: [ZoneInfo(zone.key).key], ZoneInfo),
    "decimal.Decimal": (lambda value: [str(value)], Decimal),
    "uuid.UUID": (lambda value: [value.hex], uuid.UUID),
    "pathlib.PosixPath": _PATH,
    "pathlib.WindowsPath": _PATH,
    "pathlib.PurePosixPath": (_PATH[0], PurePosixPath),
    "pathlib.PureWindowsPath": (_PATH[0], PureWindowsPath),
    "numpy.str_": (lambda value: [value[:]], np.str_),  # str(value) ends at a NUL
    "numpy.bytes_": (lambda value: [bytes(value)], np.bytes_),
    "numpy.ndarray": (_array_parts, _array),
    "scalar": (lambda value: [_descr(value.dtype), value.tobytes()], _scalar),
    "tensor": (lambda tensor: [tensor.numpy()], lambda array: array),
    "pandas.DataFrame": (lambda frame: [_frame_bytes(frame)], lambda data: _table(data).to_pandas()),
    "pandas.Series": (
        lambda series: [_frame_bytes(series.to_frame("0")), series.name],
        lambda data, name: _table(data).to_pandas().iloc[:, 0].rename(name),
    ),
    "pandas.Index": (
        lambda index: [_frame_bytes(index.to_frame()[[]])],
        lambda data: _table(data).to_pandas().index,
    ),
    "pyarrow.Table": (lambda table: [_table_bytes(table)], _table),
}
