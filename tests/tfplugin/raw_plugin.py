"""Calls plugin functions that TensorFlow's Python API does not reach, as TensorFlow would."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ignite_tf_magic.tfplugin import registration

HEADER = Path(registration.__file__).with_name("_filesystem.h")
_pointer, _text = ctypes.c_void_p, ctypes.c_char_p


class PluginOps(ctypes.Structure):
    _fields_ = [("scheme", _text)] + [
        field
        for name in ("filesystem", "random_access_file", "writable_file", "read_only_memory_region")
        for field in (
            (f"{name}_abi", ctypes.c_int),
            (f"{name}_api", ctypes.c_int),
            (f"{name}_size", ctypes.c_size_t),
            (f"{name}_ops", ctypes.POINTER(_pointer)),
        )
    ]


class PluginInfo(ctypes.Structure):
    _fields_ = [
        ("num_schemes", ctypes.c_size_t),
        ("ops", ctypes.POINTER(PluginOps)),
        ("allocate", _pointer),
        ("free", _pointer),
    ]


def positions(struct: str) -> dict[str, int]:
    import re

    body = HEADER.read_text().partition(f"typedef struct {struct} {{")[2].partition(f"}} {struct};")[0]
    return {name: number for number, name in enumerate(re.findall(r"\(\*(\w+)\)", body))}


class RawPlugin:
    """The function tables from TF_InitPlugin. Each call gets its own TF_Status."""

    def __init__(self) -> None:
        import tensorflow as tf

        library = ctypes.CDLL(str(registration._library_path()))
        self.info = PluginInfo()
        library.TF_InitPlugin(ctypes.byref(self.info))
        (framework,) = Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework*")
        self.tf = ctypes.CDLL(str(framework))
        self.tf.TF_NewStatus.restype = _pointer
        self.tf.TF_Message.restype = _text
        for name in ("TF_GetCode", "TF_Message", "TF_DeleteStatus"):
            getattr(self.tf, name).argtypes = [_pointer]

    def call(self, struct: str, table: str, name: str, result: type | None, *arguments: object):
        """Call a function with the status as last argument. Returns (result, code, message)."""
        address = getattr(self.info.ops[0], f"{table}_ops")[positions(struct)[name]]
        types = [_text if isinstance(a, bytes) else type(a) for a in arguments]
        status = self.tf.TF_NewStatus()
        try:
            got = ctypes.CFUNCTYPE(result, *types, _pointer)(address)(*arguments, status)
            return got, self.tf.TF_GetCode(status), self.tf.TF_Message(status).decode()
        finally:
            self.tf.TF_DeleteStatus(status)

    def path_op(self, name: str, path: str) -> tuple[int, str]:
        nothing = _pointer()
        return self.call("TF_FilesystemOps", "filesystem", name, None, nothing, path.encode())[1:]

    def region(self, path: str) -> tuple[bytes | None, int, str]:
        """Map a file and release it. TensorFlow's only op for this never releases the mapping."""
        at = _pointer(ctypes.addressof(region := (_pointer * 1)()))
        _, code, message = self.call(
            *("TF_FilesystemOps", "filesystem", "new_read_only_memory_region_from_file", None),
            *(_pointer(), path.encode(), at),
        )
        if code:
            return None, code, message
        table = positions("TF_ReadOnlyMemoryRegionOps")
        ops = self.info.ops[0].read_only_memory_region_ops
        address = ctypes.CFUNCTYPE(_pointer, _pointer)(ops[table["data"]])(region)
        length = ctypes.CFUNCTYPE(ctypes.c_uint64, _pointer)(ops[table["length"]])(region)
        assert address % 64 == 0
        data = ctypes.string_at(address, length)
        ctypes.CFUNCTYPE(None, _pointer)(ops[table["cleanup"]])(region)
        return data, code, message

    @contextmanager
    def _open(self, kind: str, struct: str, table: str, path: str) -> Iterator[ctypes.Array]:
        file = (_pointer * 1)()
        at = _pointer(ctypes.addressof(file))
        _, code, message = self.call(
            "TF_FilesystemOps", "filesystem", kind, None, _pointer(), path.encode(), at
        )
        assert code == 0, message
        try:
            yield file
        finally:
            cleanup = getattr(self.info.ops[0], f"{table}_ops")[positions(struct)["cleanup"]]
            ctypes.CFUNCTYPE(None, _pointer)(cleanup)(ctypes.addressof(file))

    @contextmanager
    def reader(self, path: str) -> Iterator[RawReader]:
        with self._open(
            "new_random_access_file", "TF_RandomAccessFileOps", "random_access_file", path
        ) as file:
            yield RawReader(self, file)

    @contextmanager
    def writer(self, path: str) -> Iterator[RawWriter]:
        with self._open("new_writable_file", "TF_WritableFileOps", "writable_file", path) as file:
            yield RawWriter(self, file)


class RawReader:
    def __init__(self, plugin: RawPlugin, file: ctypes.Array) -> None:
        self.plugin, self.file = plugin, file

    def read(self, offset: int, size: int) -> tuple[bytes | None, int, str]:
        space = ctypes.create_string_buffer(size + 1)
        got, code, message = self.plugin.call(
            *("TF_RandomAccessFileOps", "random_access_file", "read", ctypes.c_int64),
            *(_pointer(ctypes.addressof(self.file)), ctypes.c_uint64(offset), ctypes.c_size_t(size)),
            _pointer(ctypes.addressof(space)),
        )
        return (space.raw[:got] if got >= 0 else None), code, message


class RawWriter:
    def __init__(self, plugin: RawPlugin, file: ctypes.Array) -> None:
        self.plugin, self.file = plugin, file

    def _call(self, name: str, result: type | None, *arguments: object):
        at = _pointer(ctypes.addressof(self.file))
        return self.plugin.call("TF_WritableFileOps", "writable_file", name, result, at, *arguments)

    def append(self, data: bytes) -> tuple[int, str]:
        return self._call("append", None, data, ctypes.c_size_t(len(data)))[1:]

    def tell(self) -> tuple[int, int, str]:
        return self._call("tell", ctypes.c_int64)

    def call(self, name: str) -> tuple[int, str]:
        return self._call(name, None)[1:]
