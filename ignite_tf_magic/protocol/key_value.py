"""Requests that read and write rows by key, and parsers of their answers, as in `messages`.

Source: Ignite documentation, "Binary Client Protocol", key-value queries; transactions (IEP-34).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.messages import Request, for_cache
from ignite_tf_magic.protocol.objects import FindType
from ignite_tf_magic.protocol.ops import Concurrency, Isolation, Operation, TypeCode
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.write_values import write_value

_TRANSACTIONAL = 2
_EXPIRING = 4
_UNCHANGED = -2


def get(cache: int, key: Any) -> Request:
    """Build a request for the value of a key; `parse_value` reads the answer."""
    return _with(Operation.CACHE_GET, cache, key)


def get_all(cache: int, keys: Collection[Any]) -> Request:
    """Build a request for the values of keys; `parse_rows` reads the answer."""
    return _with_all(Operation.CACHE_GET_ALL, cache, keys)


def contains(cache: int, key: Any) -> Request:
    """Build a request that asks whether a key exists; `parse_bool` reads the answer."""
    return _with(Operation.CACHE_CONTAINS_KEY, cache, key)


def put(cache: int, key: Any, value: Any) -> Request:
    """Build a request that writes one row; the answer is empty."""
    return _with(Operation.CACHE_PUT, cache, key, value)


def put_if_absent(cache: int, key: Any, value: Any) -> Request:
    """Build a request that writes one row unless its key exists.

    `parse_bool` reads the answer: whether the row was written.
    """
    return _with(Operation.CACHE_PUT_IF_ABSENT, cache, key, value)


def replace_if_equals(cache: int, key: Any, old: Any, new: Any) -> Request:
    """Build a request that writes one row if its value is `old`.

    `parse_bool` reads the answer: whether the row was written.
    """
    return _with(Operation.CACHE_REPLACE_IF_EQUALS, cache, key, old, new)


def put_all(cache: int, rows: Mapping[Any, Any]) -> Request:
    """Build a request that writes rows; the answer is empty."""
    writer = for_cache(cache).int32(len(rows))
    for key, value in rows.items():
        write_value(writer, key)
        write_value(writer, value)
    return Request(Operation.CACHE_PUT_ALL, bytes(writer.data))


def put_encoded(cache: int, num_rows: int, rows: bytes | bytearray | memoryview) -> Request:
    """Build a request that writes rows already encoded as key, value, key, value; the answer is empty."""
    head = for_cache(cache).int32(num_rows)
    return Request(Operation.CACHE_PUT_ALL, b"".join((head.data, rows)))


def contains_all(cache: int, keys: Collection[Any]) -> Request:
    """Build a request that asks whether all of these keys exist; `parse_bool` reads the answer."""
    return _with_all(Operation.CACHE_CONTAINS_KEYS, cache, keys)


def remove(cache: int, key: Any) -> Request:
    """Build a request that removes a key; `parse_bool` reads the answer: whether the key existed."""
    return _with(Operation.CACHE_REMOVE_KEY, cache, key)


def remove_all(cache: int, keys: Collection[Any]) -> Request:
    """Build a request that removes keys, whether they exist or not; the answer is empty."""
    return _with_all(Operation.CACHE_REMOVE_KEYS, cache, keys)


def parse_value(payload: memoryview, find_type: FindType | None = None) -> Any:
    """Read the answer of `get`: the value, or None."""
    return read_value(Reader(payload), find_type)


def parse_rows(payload: memoryview, find_type: FindType | None = None) -> list[tuple[Any, Any]]:
    """Read the answer of `get_all`: the keys that exist and their values, in the server's order."""
    reader = Reader(payload)
    return [(read_value(reader, find_type), read_value(reader, find_type)) for _ in range(reader.count(2))]


def start_transaction(concurrency: Concurrency, isolation: Isolation, timeout_ms: int) -> Request:
    """Build a request that begins a transaction on its connection; `parse_transaction` reads the answer."""
    writer = Writer().int8(concurrency).int8(isolation).int64(timeout_ms).int8(TypeCode.NULL)
    return Request(Operation.TX_START, bytes(writer.data))


def end_transaction(transaction: int, *, commit: bool) -> Request:
    """Build a request that commits a transaction or rolls it back; the answer is empty."""
    return Request(Operation.TX_END, bytes(Writer().int32(transaction).bool(commit).data))


def within(request: Request, transaction: int) -> Request:
    """Return a request of this module as part of a transaction on the same connection."""
    cache, operands = request.payload[:4], request.payload[5:]
    head = Writer().raw(cache).int8(_TRANSACTIONAL).int32(transaction)
    return Request(request.operation, b"".join((head.data, operands)))


def expiring(request: Request, ttl_ms: int) -> Request:
    """Return a write request of this module whose row expires `ttl_ms` after it was last written."""
    cache, operands = request.payload[:4], request.payload[5:]
    head = Writer().raw(cache).int8(_EXPIRING).int64(ttl_ms).int64(ttl_ms).int64(_UNCHANGED)
    return Request(request.operation, b"".join((head.data, operands)))


def parse_transaction(payload: memoryview) -> int:
    """Read the answer of `start_transaction`: the number of the transaction."""
    return Reader(payload).int32()


def _with(operation: Operation, cache: int, *values: Any) -> Request:
    writer = for_cache(cache)
    for value in values:
        write_value(writer, value)
    return Request(operation, bytes(writer.data))


def _with_all(operation: Operation, cache: int, keys: Collection[Any]) -> Request:
    writer = for_cache(cache).int32(len(keys))
    for key in keys:
        write_value(writer, key)
    return Request(operation, bytes(writer.data))
