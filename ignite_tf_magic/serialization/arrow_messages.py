"""Checks the messages of Arrow streams before Arrow reads them."""

from __future__ import annotations

from typing import Any


def check_stream(data: Any) -> None:
    """Check all messages of a stream.

    Raises:
        ValueError: Arrow would run code or decompress data when it reads a message.
        pyarrow.ArrowException: The data are not a stream.
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(data):
        check_message(message)


def check_message(message: Any) -> None:
    """Check that Arrow can read a message without running code or decompressing data.

    Args:
        message: A `pyarrow.ipc.Message`. Only its metadata show this; they have the format Message of Message.fbs.

    Raises:
        ValueError: Arrow would run code or decompress data.
    """
    kind, data = message.type, message.metadata.to_pybytes()

    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(data[at : at + size], "little", signed=size == 4)

    def field(table: int, index: int) -> int:
        fields = table - number(table)
        offset = number(fields + 4 + 2 * index, 2) if 4 + 2 * index < number(fields, 2) else 0
        return offset and table + offset

    def follow(at: int) -> int:
        return at + number(at)

    batch = follow(field(follow(0), 2))
    if kind == "dictionary":
        batch = follow(field(batch, 1))
    # b"ARROW:ex" begins ARROW:extension:name and ARROW:experimental_compression, which Arrow still reads.
    if (kind != "schema" and field(batch, 3)) or b"ARROW:ex" in data:
        raise ValueError("compressed batches or extension types")
