"""Chooses the types of values and keys for a cache that a load creates."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import table_config
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.sql_tables import CacheTable
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.columns import Columns
from ignite_tf_magic.errors import ServerError, SourceError
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.messages import QueryEntity
from ignite_tf_magic.protocol.objects import BinaryObject, BinaryType, binary_type_of
from ignite_tf_magic.protocol.ops import TypeCode

_OF_DAYS = (TypeCode.BINARY_OBJECT, TypeCode.TIME)


def value_type_name(cache_name: str) -> str:
    """Return the name of a cache's value type: `MNIST` -> `MNIST`, `my-digits.v2` -> `My_digits_v2`."""
    words = re.sub(r"\W", "_", cache_name)
    return words[:1].upper() + words[1:] if words[:1].isalpha() else f"T{words}"


@dataclass(frozen=True, slots=True)
class RowTypes:
    """The types of a cache's rows.

    Attributes:
        type_name: Name of the value type.
        key_type: Type of the keys, if these are objects; None if they have one of Ignite's own types.
    """

    type_name: str
    key_type: BinaryType | None = None

    def encoder(self, chunk: Columns, first_key: int = 0) -> RowEncoder:
        """Return an encoder for some rows. Rows without keys are numbered from `first_key`."""
        return RowEncoder(
            self.type_name,
            chunk.values,
            self.keys(chunk, first_key),
            nulls=chunk.nulls,
            codes=chunk.codes,
            key_type=self.key_type,
        )

    def keys(self, chunk: Columns, first_key: int = 0) -> NDArray[Any]:
        """Return the keys of some rows, in the form in which they are written."""
        if chunk.keys is None:
            return np.arange(first_key, first_key + len(chunk))
        if self.key_type is None:
            return chunk.keys
        names = tuple(self.key_type.fields)
        keys = np.empty(len(chunk), object)
        keys[:] = [BinaryObject(self.key_type.name, dict(zip(names, key, strict=True))) for key in chunk.keys]
        return keys


def new_types(client: Client, cache: str, rows: CheckedRows) -> RowTypes:
    """Choose the types of a new cache. They have the cache's name, plus a number if that name is taken by another type.

    A dataset takes its fields from the type. So rows with fewer or more fields do not share a type.
    """
    name = value_type_name(cache)
    value_type = free_type(client, name, rows.codes)
    key_type = free_type(client, f"{name}_key", rows.key_codes) if has_object_keys(rows) else None
    return RowTypes(value_type.name, key_type)


def has_object_keys(rows: CheckedRows) -> bool:
    """Return whether keys are objects: those of several columns, and dates, which Ignite rejects as keys."""
    return len(rows.key_codes) > 1 or TypeCode.BINARY_OBJECT in rows.key_codes.values()


def free_type(client: Client, name: str, codes: Mapping[str, int]) -> BinaryType:
    """Return a type with these fields. It has that name, plus a number if the name is taken by a type with others."""
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in (binary_type_of(name, codes) for name in numbered) if _is_free(client, each))


def _is_free(client: Client, mine: BinaryType) -> bool:
    """Return whether the cluster accepts a type. Of names that differ only in case, Ignite accepts just one."""
    known = client.types.find(mine.type_id, refresh=True)
    return known is None or (known.name == mine.name and known.fields == mine.fields)


def loaded_types(cache: Cache, table: CacheTable, rows: CheckedRows) -> RowTypes | None:
    """Return the types of a cache, if a load of these rows would create exactly this cache.

    Return None if anything differs: the name of a type, a column, its type, or a rule of the table.
    """
    config, name = cache.config(), re.escape(value_type_name(cache.name))
    entity = config.only_table
    if entity is None or any(each.has_rules for each in table.named):
        return None
    if not re.fullmatch(rf"{name}(_\d+)?", entity.value_type):
        return None
    key_type = None
    if has_object_keys(rows):
        if not re.fullmatch(rf"{name}_key(_\d+)?", entity.key_type):
            return None
        key_type = binary_type_of(entity.key_type, rows.key_codes)
    types = RowTypes(entity.value_type, key_type)
    encoder = types.encoder(next(rows.chunks()))
    made = table_config(cache.name, encoder, 0, key_name=key_column(tuple(rows.key_codes)))
    is_same = (config.sql_schema, _parts(entity)) == (made.sql_schema, _parts(made.query_entities[0]))
    return types if is_same else None


def _parts(entity: QueryEntity) -> tuple[object, ...]:
    """Return an entity in comparable parts: the order of key columns matters, that of the others does not."""
    keys = [each for each in entity.fields if each.is_key]
    return replace(entity, fields=()), keys, frozenset(entity.fields)


def check_zones(client: Client, rows: CheckedRows) -> None:
    """Refuse dates and times of day if a node would show different ones: SQL uses the node's time zone for them.

    Raises:
        SourceError: A node does not run in UTC.
    """
    of_days = [name for name, code in {**rows.codes, **rows.key_codes}.items() if code in _OF_DAYS]
    if not of_days:
        return
    moments = [np.datetime64(each, "s") for each in ("1970-01-01", "2024-01-02", "2024-07-02")]
    request = sql.execute(f"SELECT {', '.join(['CAST(? AS VARCHAR)'] * len(moments))}", moments, 1)
    for node in client.nodes():
        try:
            with client.router.borrowed(node) as channel:
                (texts,) = channel.call(request, lambda payload: sql.parse_result(payload).rows)
        except ServerError:  # a node without SQL shows no times
            continue
        if any(
            not text.startswith(f"{moment.astype('M8[D]')} 00:00:00")
            for moment, text in zip(moments, texts, strict=True)
        ):
            raise SourceError(
                f"column {of_days[0]!r} holds dates or times of day, and the Ignite node at {_where(node)} does not "
                f"run in UTC: its SQL shows 2024-01-02 00:00 UTC as {texts[1]}. Start it with -Duser.timezone=UTC, or "
                "load the column as text or as timestamps"
            )


def _where(node: Node) -> str:
    return str(node.endpoints[0] if node.endpoints else node.node_id)


def key_column(key: Sequence[str]) -> str:
    """Return the name of the SQL column for keys of one type."""
    return key[0] if len(key) == 1 else "ID"
