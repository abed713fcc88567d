"""Builds requests as bytes to send and parses answers into frozen values, with one function each per operation.

Source: Ignite documentation, "Binary Client Protocol", cache configuration, key-value, scan queries;
partition awareness (IEP-23), node endpoints (IEP-44).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.affinity import PartitionMap, TopologyVersion
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.objects import BinaryType, java_hash
from ignite_tf_magic.protocol.ops import (
    CODE_OF_JAVA_TYPE,
    AtomicityMode,
    CacheMode,
    Feature,
    Operation,
    PeekMode,
    TypeCode,
    WriteSyncMode,
)
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.write_values import write_text

KEEP_BINARY = 1
_JAVA = 0
_SCAN = struct.Struct("<ibbiib")
_FIRST_PAGE = struct.Struct("<qi")
_NEXT_PAGE = struct.Struct("<i")


class Request(NamedTuple):
    """The code of an operation and its payload, ready for `Connection.send`.

    Attributes:
        head: Bytes before the payload, for nodes that have `feature`.
        tail: Bytes after the payload, for nodes that have `feature`.
        feature: The feature that makes `head` and `tail` part of the operation.
    """

    operation: int
    payload: bytes = b""
    head: bytes = b""
    tail: bytes = b""
    feature: int | None = None

    def for_node(self, features: Collection[int]) -> bytes:
        """Return the payload as a node with these features expects it."""
        return self.head + self.payload + self.tail if self.feature in features else self.payload


@dataclass(frozen=True, slots=True)
class QueryField:
    """A field of a cache's SQL table.

    Attributes:
        name: Name in the binary type; dots lead to nested fields.
        java_type: Java type, such as "java.lang.Integer" or "[B".
        column: The SQL column of the field. The cluster returns one for each field. If it is empty when a cache is
            created, the column is the name in capitals.
    """

    name: str
    java_type: str
    is_key: bool = False
    column: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class QueryEntity:
    """The SQL table of a cache. Key and value types are names of Java or binary types."""

    table: str
    key_type: str
    value_type: str
    fields: tuple[QueryField, ...] = ()
    key_field: str | None = None
    value_field: str | None = None

    def path_of(self, field: QueryField) -> tuple[str, ...] | None:
        """Return the path of a field in rows, or None if Ignite looks for it in the key and value of each row."""
        if field.name == self.key_field:
            return ("key",)
        if field.name == self.value_field:
            return ("val",)
        is_sure = self.key_type in CODE_OF_JAVA_TYPE or any(each.is_key for each in self.fields)
        return ("key" if field.is_key else "val", *field.name.split(".")) if is_sure else None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The configuration of a cache. When a cache is created, None means the server's default.

    The defaults are safe: writes wait for all copies, and reads see them.
    """

    name: str
    backups: int = 0
    mode: CacheMode = CacheMode.PARTITIONED
    atomicity: AtomicityMode = AtomicityMode.ATOMIC
    write_mode: WriteSyncMode = WriteSyncMode.FULL_SYNC
    read_from_backup: bool | None = None
    sql_schema: str | None = None
    query_entities: tuple[QueryEntity, ...] = field(default=())

    @property
    def only_table(self) -> QueryEntity | None:
        """The SQL table of the cache; None if it has none or several."""
        return self.query_entities[0] if len(self.query_entities) == 1 else None


@dataclass(frozen=True, slots=True)
class NodeEndpoints:
    """A server node: its id, its client port, and all addresses and host names that it reports."""

    node_id: uuid.UUID
    port: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """All server nodes that accept thin clients, at one (major) topology version."""

    version: int
    nodes: tuple[NodeEndpoints, ...]


class Page(NamedTuple):
    """Encoded rows of a scan: key, value, key, value, ... A tuple, because there are many pages.

    Attributes:
        cursor: Id of the open cursor, or None if the answer does not carry it (follow-up pages).
        rows: The bytes of the rows only; valid until the transport's buffer is reused.
        has_more: False for the last page; the server has then closed the cursor.
    """

    cursor: int | None
    num_rows: int
    rows: memoryview
    has_more: bool


def cache_id(name: str) -> int:
    """Return the id by which requests identify a cache."""
    return java_hash(name)


def for_cache(cache: int) -> Writer:
    """Return a payload that begins an operation on a cache, outside of transactions."""
    return Writer().int32(cache).int8(0)


def size(cache: int, peek_modes: Sequence[PeekMode] = (PeekMode.PRIMARY,)) -> Request:
    """Build a request for the number of rows of a cache in the whole cluster; `parse_int64` reads the answer."""
    writer = for_cache(cache).int32(len(peek_modes))
    for mode in peek_modes:
        writer.int8(mode)
    return Request(Operation.CACHE_GET_SIZE, bytes(writer.data))


def cache_names() -> Request:
    """Build a request for the names of all caches; `parse_names` reads the answer."""
    return Request(Operation.CACHE_GET_NAMES)


def destroy_cache(cache: int) -> Request:
    """Build a request that destroys a cache with its rows; the answer is empty."""
    return Request(Operation.CACHE_DESTROY, bytes(Writer().int32(cache).data))


def cache_configuration(cache: int) -> Request:
    """Build a request for a cache's configuration; `parse_configuration` reads the answer."""
    return Request(Operation.CACHE_GET_CONFIGURATION, bytes(Writer().int32(cache).int8(0).data))


def create_cache(config: CacheConfig, *, exist_ok: bool) -> Request:
    """Build a request that creates a cache; the answer is empty."""
    properties = [_property(0).raw(_text(config.name))]
    properties.append(_property(1).int32(config.mode))
    properties.append(_property(2).int32(config.atomicity))
    properties.append(_property(3).int32(config.backups))
    properties.append(_property(4).int32(config.write_mode))
    if config.read_from_backup is not None:
        properties.append(_property(6).bool(config.read_from_backup))
    if config.sql_schema is not None:
        properties.append(_property(203).raw(_text(config.sql_schema)))
    if config.query_entities:
        properties.append(_query_entities(config.query_entities))
        keeps_names = any(field.column for entity in config.query_entities for field in entity.fields)
        properties.append(_property(205).bool(keeps_names))
    body = Writer().int16(len(properties))
    for item in properties:
        body.raw(item.data)
    operation = (
        Operation.CACHE_GET_OR_CREATE_WITH_CONFIGURATION
        if exist_ok
        else Operation.CACHE_CREATE_WITH_CONFIGURATION
    )
    return Request(operation, bytes(Writer().int32(len(body.data)).raw(body.data).data))


def _property(code: int) -> Writer:
    return Writer().int16(code)


def _text(value: str | None) -> bytes:
    writer = Writer()
    write_text(writer, value)
    return bytes(writer.data)


def _query_entities(entities: Sequence[QueryEntity]) -> Writer:
    writer = _property(200).int32(len(entities))
    for entity in entities:
        for text in (entity.key_type, entity.value_type, entity.table, entity.key_field, None):
            write_text(writer, text)
        writer.int32(len(entity.fields))
        for column in entity.fields:
            write_text(writer, column.name)
            write_text(writer, column.java_type)
            writer.bool(column.is_key).bool(False).int8(TypeCode.NULL).int32(-1).int32(-1)
        named = [each for each in entity.fields if each.column]
        writer.int32(len(named))
        for each in named:
            write_text(writer, each.name)
            write_text(writer, each.column)
        writer.int32(0)
    return writer


def partitions(cache: int) -> Request:
    """Build a request for the primary node of each partition, whatever affinity function the cache has.

    `parse_partitions` reads the answer.
    """
    writer = Writer().int32(1).int32(cache)
    every_affinity = bytes(Writer().bool(True).data)
    return Request(
        Operation.CACHE_PARTITIONS,
        bytes(writer.data),
        head=every_affinity,
        feature=Feature.ALL_AFFINITY_MAPPINGS,
    )


def node_endpoints() -> Request:
    """Build a request for all server nodes; `parse_topology` reads the answer."""
    return Request(Operation.CLUSTER_GET_NODE_ENDPOINTS, bytes(Writer().int64(-1).int64(-1).data))


def heartbeat() -> Request:
    """Build a request that does nothing; the flags of its answer report topology changes."""
    return Request(Operation.HEARTBEAT)


def cluster_state() -> Request:
    """Build a request for the cluster's state.

    `parse_int8` reads the answer: 0 inactive, 1 active, 2 read-only.
    """
    return Request(Operation.CLUSTER_GET_STATE)


def change_cluster_state(state: int) -> Request:
    """Build a request that activates (1) or deactivates (0) the cluster; the answer is empty."""
    return Request(Operation.CLUSTER_CHANGE_STATE, bytes(Writer().int8(state).data))


def scan(cache: int, partition: int, page_rows: int, *, local: bool = False) -> Request:
    """Build a request that opens a cursor over one partition, or over all (-1).

    `parse_first_page` reads the answer. Do not use `local` for reading: with it, a node that no longer owns the
    partition returns no rows; without it, the node forwards the query. On the owner both cost the same.
    """
    payload = _SCAN.pack(cache, KEEP_BINARY, TypeCode.NULL, page_rows, partition, local)
    return Request(Operation.QUERY_SCAN, payload)


def next_page(cursor: int) -> Request:
    """Build a request for the next page of a scan; `parse_next_page` reads the answer."""
    return Request(Operation.QUERY_SCAN_GET_PAGE, bytes(Writer().int64(cursor).data))


def close_cursor(cursor: int) -> Request:
    """Build a request that closes a cursor that still has rows; the answer is empty."""
    return Request(Operation.RESOURCE_CLOSE, bytes(Writer().int64(cursor).data))


def get_binary_type(type_id: int) -> Request:
    """Build a request for a type's fields and schemas; `parse_binary_type` reads the answer."""
    return Request(Operation.GET_BINARY_TYPE, bytes(Writer().int32(type_id).data))


def get_type_name(type_id: int) -> Request:
    """Build a request for the name of a Java class by its id; `parse_type_name` reads the answer."""
    return Request(Operation.GET_BINARY_TYPE_NAME, bytes(Writer().int8(_JAVA).int32(type_id).data))


def put_binary_type(binary_type: BinaryType) -> Request:
    """Build a request that registers a type, which the cluster merges with what it knows. The answer is empty."""
    writer = Writer().int32(binary_type.type_id)
    write_text(writer, binary_type.name)
    write_text(writer, binary_type.affinity_field)
    writer.int32(len(binary_type.fields))
    for name, (type_code, field_id) in binary_type.fields.items():
        write_text(writer, name)
        writer.int32(type_code).int32(field_id)
    writer.bool(bool(binary_type.enum_names))
    if binary_type.enum_names:
        writer.int32(len(binary_type.enum_names))
        for ordinal, name in binary_type.enum_names.items():
            write_text(writer, name)
            writer.int32(ordinal)
    writer.int32(len(binary_type.schemas))
    for schema, field_ids in binary_type.schemas.items():
        writer.int32(schema).int32(len(field_ids))
        for field_id in field_ids:
            writer.int32(field_id)
    return Request(Operation.PUT_BINARY_TYPE, bytes(writer.data))


def parse_nothing(payload: memoryview) -> None:
    """Read an empty answer."""
    del payload


def parse_bool(payload: memoryview) -> bool:
    """Read an answer that is one boolean."""
    return Reader(payload).bool()


def parse_int8(payload: memoryview) -> int:
    """Read an answer that is one byte."""
    return Reader(payload).int8()


def parse_int64(payload: memoryview) -> int:
    """Read an answer that is one 64-bit number."""
    return Reader(payload).int64()


def parse_names(payload: memoryview) -> list[str]:
    """Read the answer of `cache_names`."""
    reader = Reader(payload)
    return [_string(reader) for _ in range(reader.count())]


def _string(reader: Reader) -> str:
    value = read_value(reader)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"a string was expected, {type(value).__name__} came")
    return value


def _optional_string(reader: Reader) -> str | None:
    value = read_value(reader)
    return None if value is None else str(value)


def parse_configuration(payload: memoryview) -> CacheConfig:
    """Read the fields of `CacheConfig` from the answer of `cache_configuration`."""
    reader = Reader(payload)
    if reader.int32() != reader.remaining:
        raise RemoteProtocolError("truncated cache configuration")
    atomicity, backups, mode = reader.int32(), reader.int32(), reader.int32()
    reader.bool()
    _optional_string(reader)
    reader.take(2)
    _optional_string(reader)
    reader.take(8 + 4 + 4)
    name = _string(reader)
    reader.take(1 + 4 + 4 + 4)
    read_from_backup = reader.bool()
    reader.take(4 + 8 + 8 + 4 + 4 + 8 + 8 + 1 + 4)
    schema = _optional_string(reader)
    write_mode = reader.int32()
    for _ in range(2 * reader.count(2)):
        _optional_string(reader)
    entities = tuple(_entity(reader) for _ in range(reader.count()))
    return CacheConfig(
        name,
        backups,
        CacheMode(mode) if mode in tuple(CacheMode) else CacheMode.PARTITIONED,
        AtomicityMode(atomicity) if atomicity in tuple(AtomicityMode) else AtomicityMode.ATOMIC,
        WriteSyncMode(write_mode) if write_mode in tuple(WriteSyncMode) else WriteSyncMode.PRIMARY_SYNC,
        read_from_backup,
        schema,
        entities,
    )


def _entity(reader: Reader) -> QueryEntity:
    key_type, value_type, table, key_field, value_field = (_optional_string(reader) or "" for _ in range(5))
    fields = []
    for _ in range(reader.count()):
        name, java_type, is_key = _string(reader), _string(reader), reader.bool()
        reader.bool()
        read_value(reader)
        reader.take(8)
        fields.append(QueryField(name, java_type, is_key))
    # The cluster has an alias for each field. Without one, the column is the last part of the field's name.
    aliases = {}
    for _ in range(reader.count(2)):
        name = _string(reader)
        aliases[name] = _string(reader)
    for _ in range(reader.count()):
        _skip_index(reader)
    named = [replace(each, column=aliases.get(each.name, each.name.rpartition(".")[2])) for each in fields]
    return QueryEntity(table, key_type, value_type, tuple(named), key_field or None, value_field or None)


def _skip_index(reader: Reader) -> None:
    _optional_string(reader)
    reader.take(1 + 4)
    for _ in range(reader.count()):
        _string(reader)
        reader.bool()


def parse_topology(payload: memoryview) -> Topology:
    """Read the answer of `node_endpoints`."""
    reader = Reader(payload)
    version = reader.int64()
    nodes = []
    for _ in range(reader.count(20)):
        node_id = _bare_uuid(reader)
        port = reader.int32()
        nodes.append(NodeEndpoints(node_id, port, tuple(_string(reader) for _ in range(reader.count()))))
    reader.take(16 * reader.count(16))  # Nodes removed since the version in the request, which names none.
    return Topology(version, tuple(nodes))


def _bare_uuid(reader: Reader) -> uuid.UUID:
    high, low = reader.int64(), reader.int64()
    return uuid.UUID(int=(high & (1 << 64) - 1) << 64 | low & (1 << 64) - 1)


def parse_partitions(payload: memoryview, cache: int) -> PartitionMap | None:
    """Read the answer of `partitions`; None if the server does not list the cache (yet).

    Nodes without `Feature.ALL_AFFINITY_MAPPINGS` describe a cache with a custom affinity function like a replicated
    cache, and do not send the final flag for the default affinity.
    """
    reader = Reader(payload)
    version = TopologyVersion(reader.int64(), reader.int32())
    if not reader.count():
        return None
    is_told = reader.bool()
    has_affinity_keys = dict(_caches(reader, is_told))
    owners = dict(_owners(reader)) if is_told else {}
    is_default = reader.bool() if reader.remaining else True
    if cache not in has_affinity_keys:
        return None
    return PartitionMap(
        version, owners, partitioned=is_told, default_affinity=is_default and not has_affinity_keys[cache]
    )


def _caches(reader: Reader, is_told: bool) -> Iterable[tuple[int, bool]]:
    """Yield each cache of a group with equal partitions, and whether it has key types with an affinity field."""
    for _ in range(reader.count(4)):
        cache, num_types = reader.int32(), 0
        if is_told:
            num_types = reader.count(8)
            reader.take(8 * num_types)
        yield cache, num_types > 0


def _owners(reader: Reader) -> Iterable[tuple[uuid.UUID, tuple[int, ...]]]:
    for _ in range(reader.count()):
        node = read_value(reader)
        numbers = reader.take(4 * reader.count(4)).cast("i")
        yield node, tuple(sorted(numbers))


def parse_first_page(payload: memoryview) -> Page:
    """Read the answer of `scan`."""
    try:
        cursor, num_rows = _FIRST_PAGE.unpack_from(payload)
    except struct.error:
        raise RemoteProtocolError(f"truncated page of {len(payload)} bytes") from None
    return _page(payload, _FIRST_PAGE.size, cursor, num_rows)


def parse_next_page(payload: memoryview) -> Page:
    """Read the answer of `next_page`."""
    try:
        (num_rows,) = _NEXT_PAGE.unpack_from(payload)
    except struct.error:
        raise RemoteProtocolError(f"truncated page of {len(payload)} bytes") from None
    return _page(payload, _NEXT_PAGE.size, None, num_rows)


def _page(payload: memoryview, start: int, cursor: int | None, num_rows: int) -> Page:
    if not 0 <= 2 * num_rows <= len(payload) - start - 1:
        raise RemoteProtocolError(f"corrupted page: {num_rows} rows in {len(payload)} bytes")
    return Page(cursor, num_rows, payload[start:-1], payload[-1] != 0)


def parse_type_name(payload: memoryview) -> str:
    """Read the answer of `get_type_name`."""
    return _string(Reader(payload))


def parse_binary_type(payload: memoryview) -> BinaryType | None:
    """Read the answer of `get_binary_type`; None when the cluster does not know the type."""
    reader = Reader(payload)
    if not reader.bool():
        return None
    type_id, name, affinity = reader.int32(), _optional_string(reader), _optional_string(reader)
    fields = {}
    for _ in range(reader.count()):
        field_name = _string(reader)
        fields[field_name] = (reader.int32(), reader.int32())
    enum_names = {}
    if reader.bool():
        for _ in range(reader.count()):
            enum_name = _string(reader)
            enum_names[reader.int32()] = enum_name
    schemas = {}
    for _ in range(reader.count(8)):
        schema = reader.int32()
        schemas[schema] = tuple(reader.take(4 * reader.count(4)).cast("i"))
    return BinaryType(type_id, name or f"type {type_id}", fields, schemas, affinity, enum_names)
