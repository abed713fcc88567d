"""Reads binary types from the cluster and registers new ones there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ignite_tf_magic.client.router import Router
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.objects import (
    BUILT_IN_TYPES,
    BinaryObject,
    BinaryType,
    FindType,
    UnknownObjectSchema,
    schema_id,
)
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.write_values import code_of

T = TypeVar("T")


class TypeRegistry:
    """The cluster's binary types, remembered once read. Thread-safe."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._known: dict[int, BinaryType] = {}
        self._lock = threading.Lock()

    def find(self, type_id: int, *, refresh: bool = False) -> BinaryType | None:
        """Return a binary type, from memory unless `refresh`; None if the cluster does not know it."""
        if type_id in BUILT_IN_TYPES:
            return BUILT_IN_TYPES[type_id]
        with self._lock:
            found = None if refresh else self._known.get(type_id)
        if found is None:
            found = self._router.call(messages.get_binary_type(type_id), messages.parse_binary_type)
            if found is not None:
                with self._lock:
                    self._known[type_id] = found
        return found

    def read(self, parse: Callable[[FindType], T]) -> T:
        """Parse values with the remembered types. Read a type again if an object has an unknown schema."""
        while True:
            try:
                return parse(self.find)
            except UnknownObjectSchema as unknown:
                found = self.find(unknown.type_id, refresh=True)
                if found is None or unknown.schema_id not in found.schemas:
                    raise

    def put(self, binary_type: BinaryType) -> None:
        """Register a binary type with the cluster, which merges it with what it knows of the type."""
        self._router.call(messages.put_binary_type(binary_type), messages.parse_nothing)
        with self._lock:  # the cluster may know more schemas now
            self._known.pop(binary_type.type_id, None)

    def announce(self, value: Any) -> None:
        """Register the types of all binary objects in a value that is about to be written, at any depth."""
        for each in objects_in(value):
            self._announce(each)

    def _announce(self, value: BinaryObject) -> None:
        known = self.find(value.type_id)
        mine = _type_of(value, known)
        if known is None or not mine.schemas.keys() <= known.schemas.keys():
            self.put(mine)
            self.find(mine.type_id, refresh=True)


def objects_in(value: Any) -> Iterator[BinaryObject]:
    """Yield the binary objects in a value, inner ones first, each once."""
    yield from _objects_in(value, set())


def _objects_in(value: Any, seen: set[int]) -> Iterator[BinaryObject]:
    if not isinstance(value, BinaryObject | list | tuple | Mapping) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, BinaryObject):
        inside: Any = value.fields.values()
    else:
        inside = (each for pair in value.items() for each in pair) if isinstance(value, Mapping) else value
    for each in inside:
        yield from _objects_in(each, seen)
    if isinstance(value, BinaryObject):
        yield value


def _type_of(value: BinaryObject, known: BinaryType | None) -> BinaryType:
    ids, before = value.field_ids, known.fields if known else {}
    fields = {
        name: (_declared_code(item, before[name][0] if name in before else None), field_id)
        for (name, item), field_id in zip(value.fields.items(), ids, strict=True)
    }
    return BinaryType(value.type_id, value.type_name, fields, {schema_id(ids): ids})


def _declared_code(value: Any, known: int | None) -> int:
    """Return the type code to declare for a field. A field declared as a Java Object keeps that type."""
    if value is None or known == TypeCode.BINARY_OBJECT:
        return TypeCode.BINARY_OBJECT if known is None else known
    code = code_of(value)
    if code == TypeCode.OPTIMIZED:
        return TypeCode.BINARY_OBJECT
    return TypeCode.ENUM if code == TypeCode.BINARY_ENUM else code
