"""Reads and writes little-endian messages; every read is bounds-checked."""

from __future__ import annotations

import struct
from typing import Any

from ignite_tf_magic.errors import RemoteProtocolError

_INT8 = struct.Struct("<b")
_INT16 = struct.Struct("<h")
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")


class Reader:
    """A cursor over the bytes of one message.

    Raises:
        RemoteProtocolError: Every method raises it if the bytes end too early. A length or count that reaches past
            the end raises before any memory is allocated for it.
    """

    __slots__ = ("position", "view")

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self.view = memoryview(data)
        self.position = position

    @property
    def remaining(self) -> int:
        """The number of bytes not read yet."""
        return len(self.view) - self.position

    def _unpack(self, form: struct.Struct) -> Any:
        try:
            (value,) = form.unpack_from(self.view, self.position)
        except struct.error:
            self._short(form.size)
        self.position += form.size
        return value

    def _short(self, wanted: int) -> None:
        raise RemoteProtocolError(
            f"truncated message: {wanted} bytes wanted at offset {self.position}, {self.remaining} left"
        )

    def int8(self) -> int:
        """Read a signed byte."""
        return int(self._unpack(_INT8))

    def bool(self) -> bool:
        """Read a byte as a boolean."""
        return self.int8() != 0

    def int16(self) -> int:
        """Read a signed 16-bit integer."""
        return int(self._unpack(_INT16))

    def int32(self) -> int:
        """Read a signed 32-bit integer."""
        return int(self._unpack(_INT32))

    def int64(self) -> int:
        """Read a signed 64-bit integer."""
        return int(self._unpack(_INT64))

    def take(self, num_bytes: int) -> memoryview:
        """Return the next bytes as a view, without copying them."""
        if num_bytes < 0 or num_bytes > self.remaining:
            self._short(num_bytes)
        start = self.position
        self.position += num_bytes
        return self.view[start : self.position]

    def count(self, item_bytes: int = 1) -> int:
        """Read a 32-bit count of items that take at least `item_bytes` each."""
        number = self.int32()
        if number < 0 or number * item_bytes > self.remaining:
            raise RemoteProtocolError(
                f"corrupted message: a count of {number} at offset {self.position - 4}, "
                f"{self.remaining} bytes left"
            )
        return number

    def text(self) -> str:
        """Read a string: a 32-bit length and UTF-8 bytes.

        Raises:
            RemoteProtocolError: The bytes are not UTF-8.
        """
        raw = bytes(self.take(self.count()))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"corrupted message: a string that is not UTF-8: {error}") from None


class Writer:
    """A message that grows with every value appended. Each method returns the writer."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def int8(self, value: int) -> Writer:
        """Append a signed byte."""
        self.data += _INT8.pack(value)
        return self

    def bool(self, value: bool) -> Writer:
        """Append a boolean as a byte."""
        self.data.append(1 if value else 0)
        return self

    def int16(self, value: int) -> Writer:
        """Append a signed 16-bit integer."""
        self.data += _INT16.pack(value)
        return self

    def int32(self, value: int) -> Writer:
        """Append a signed 32-bit integer."""
        self.data += _INT32.pack(value)
        return self

    def int64(self, value: int) -> Writer:
        """Append a signed 64-bit integer."""
        self.data += _INT64.pack(value)
        return self

    def raw(self, value: bytes | bytearray | memoryview) -> Writer:
        """Append bytes as they are."""
        self.data += value
        return self
