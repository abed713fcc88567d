"""The fields of the rows that were read: their names, the rows' types, and the stored types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache as remembered
from typing import Any

import numpy as np

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.sql_tables import table_as_it_is
from ignite_tf_magic.errors import ServerError
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.objects import BinaryType, FindType
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.row_fields import Path, RowField, RowFields, type_name
from ignite_tf_magic.protocol.seen_rows import with_declared


@dataclass(frozen=True, slots=True)
class RowKind:
    """Rows with one type of keys and one type of values.

    Attributes:
        num_rows: How many of the rows that were read have these types.
    """

    key_type: str
    value_type: str
    num_rows: int


def cell_of(row: RowFields, path: Path) -> Any:
    """Return a field of a row, a byte array as an array of numbers; None if the row has no such field."""
    field = row.fields.get(path)
    if field is None:
        return None
    return np.frombuffer(field.value, np.uint8) if field.code == TypeCode.BYTE_ARRAY else field.value


def paths_of(rows: Iterable[RowFields]) -> list[Path]:
    """List the fields of rows, those of the key first.

    Omits an object that is null in some rows if other rows have its fields.
    """
    seen = dict.fromkeys(path for row in rows for path in row.fields)
    above = {path[:length] for path in seen for length in range(1, len(path))}
    empty = {path for path in above & seen.keys() if all(_is_null(row.fields.get(path)) for row in rows)}
    return sorted((path for path in seen if path not in empty), key=lambda path: path[0] != "key")


def _is_null(field: RowField | None) -> bool:
    return field is None or field.code == TypeCode.NULL


def kinds_of(rows: Iterable[RowFields]) -> tuple[RowKind, ...]:
    """Count the rows of each type."""
    return tuple(RowKind(*types, count) for types, count in Counter(row.types for row in rows).most_common())


def type_finder(cache: Cache) -> FindType:
    """Return a function that fetches each type once, without an older cached copy, with the columns that SQL declares.

    Types gain fields, so an older copy may lack some.
    """

    @remembered
    def find(type_id: int) -> BinaryType | None:
        return cache.client.types.find(type_id, refresh=True)

    return with_declared(find, table_as_it_is(cache, cache.config()))


def stored_types(client: Client, fields: Iterable[RowField]) -> str:
    """Name the types of fields that have values, joined by "or"; for objects serialized by Java, name their class."""
    kinds = dict.fromkeys((each.code, each.java_class_id, each.value is None) for each in fields)
    return " or ".join(_stored_type(client, *kind) for kind in kinds) or "unknown"


def _stored_type(client: Client, code: int, class_id: int | None, is_unknown: bool) -> str:
    if class_id is not None:
        return f"{_java_class(client, class_id)}, serialised by Java"
    return "object of an unknown type" if is_unknown else type_name(code)


def _java_class(client: Client, class_id: int) -> str:
    """Return the name of a Java class, from the cluster."""
    try:
        return client.router.call(messages.get_type_name(class_id), messages.parse_type_name)
    except ServerError:
        return f"class {class_id & 0xFFFFFFFF:#010x}"
