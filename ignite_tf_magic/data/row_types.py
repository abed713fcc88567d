"""How rows lie in a cache: the types of their values and keys, for a new cache or as an old one has them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import java_type
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.columns import Columns
from ignite_tf_magic.errors import ServerError, SourceError
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.messages import QueryEntity
from ignite_tf_magic.protocol.objects import BinaryObject, BinaryType, binary_type_of
from ignite_tf_magic.protocol.ops import TypeCode

_OF_DAYS = (TypeCode.BINARY_OBJECT, TypeCode.TIME)
_WIDENED = {
    "java.lang.Short": ("java.lang.Byte",),
    "java.lang.Integer": ("java.lang.Byte", "java.lang.Short"),
    "java.lang.Long": ("java.lang.Byte", "java.lang.Short", "java.lang.Integer"),
    "java.lang.Double": ("java.lang.Float",),
}
_DTYPES = {
    "java.lang.Short": "i2",
    "java.lang.Integer": "i4",
    "java.lang.Long": "i8",
    "java.lang.Double": "f8",
}


def value_type_name(cache_name: str) -> str:
    """Name a cache's value type: `MNIST` -> `MNIST`, `my-digits.v2` -> `My_digits_v2`."""
    words = re.sub(r"\W", "_", cache_name)
    return words[:1].upper() + words[1:] if words[:1].isalpha() else f"T{words}"


@dataclass(frozen=True, slots=True)
class RowTypes:
    """The types of a cache's rows.

    Attributes:
        type_name: Of the values.
        key_type: Of the keys, where these are objects; None where they are of a type of Ignite's own.
        names: Column of the source -> name of the field.
        dtypes: Field -> dtype to which its numbers are widened.
    """

    type_name: str
    key_type: BinaryType | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def encoder(self, chunk: Columns, first_key: int = 0) -> RowEncoder:
        """Return what encodes some rows; where they have no keys, they are numbered."""
        if self.names:
            chunk = chunk.with_names(self.names)
        values = {
            name: array.astype(self.dtypes.get(name, array.dtype), copy=False)
            for name, array in chunk.values.items()
        }
        return RowEncoder(
            self.type_name,
            values,
            self.keys(chunk, first_key),
            nulls=chunk.nulls,
            codes=chunk.codes,
            key_type=self.key_type,
        )

    def keys(self, chunk: Columns, first_key: int = 0) -> NDArray[Any]:
        """Return the keys of some rows as they are written."""
        if chunk.keys is None:
            return np.arange(first_key, first_key + len(chunk))
        if self.key_type is None:
            return chunk.keys
        names = tuple(self.key_type.fields)
        keys = np.empty(len(chunk), object)
        keys[:] = [BinaryObject(self.key_type.name, dict(zip(names, key, strict=True))) for key in chunk.keys]
        return keys


def new_types(client: Client, cache: str, rows: CheckedRows) -> RowTypes:
    """Choose the types of a new cache: of its name, or that and a number when it means another type.

    A dataset takes its fields from the type, so rows with fewer do not share it, nor do those with more.
    """
    name = value_type_name(cache)
    value_type = free_type(client, name, rows.codes)
    key_type = free_type(client, f"{name}_key", rows.key_codes) if has_object_keys(rows) else None
    return RowTypes(value_type.name, key_type)


def has_object_keys(rows: CheckedRows) -> bool:
    """Whether keys are objects: of several columns, or a date, which Ignite takes for no key by itself."""
    return len(rows.key_codes) > 1 or TypeCode.BINARY_OBJECT in rows.key_codes.values()


def free_type(client: Client, name: str, codes: Mapping[str, int]) -> BinaryType:
    """Return a type with these fields: of that name, or that and a number where the name means other fields."""
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in (binary_type_of(name, codes) for name in numbered) if _is_free(client, each))


def _is_free(client: Client, mine: BinaryType) -> bool:
    """Tell whether the cluster takes a type. Names that differ by case have one id, and Ignite takes one of them."""
    known = client.types.find(mine.type_id, refresh=True)
    return known is None or (known.name == mine.name and known.fields == mine.fields)


def types_of(cache: Cache, rows: CheckedRows) -> RowTypes:
    """Return the types that a cache has, if the rows of a source fit them.

    Raises:
        SourceError: They do not: a column is missing, too many, or of another type.
    """
    entities = cache.config().query_entities
    if len(entities) != 1:
        raise SourceError(
            f"cache {cache.name!r} has {len(entities) or 'no'} SQL tables, so nobody knows what its rows are; write "
            "them with the client (Cache.put_all)"
        )
    entity = entities[0]
    fields = [each for each in entity.fields if not each.is_key and each.name != entity.key_field]
    keys = [each for each in entity.fields if each.is_key and each.name != entity.key_field]
    # First: who does not name the keys has them among the other columns.
    key_names, key_type = _fitting_key(cache.name, entity, {each.name: each.java_type for each in keys}, rows)
    names = _fitting(cache.name, rows.codes, {each.name: each.java_type for each in fields})
    known = {each.name: each.java_type for each in fields}
    dtypes = {
        names[name]: _DTYPES[wide]
        for name, code in rows.codes.items()
        if (wide := known[names[name]]) != java_type(code)
    }
    return RowTypes(entity.value_type, key_type, {**names, **key_names}, dtypes)


def _fitting_key(
    cache: str, entity: QueryEntity, keys: Mapping[str, str], rows: CheckedRows
) -> tuple[Mapping[str, str], BinaryType | None]:
    codes = rows.key_codes
    if keys and not entity.key_type.startswith("java."):
        if not codes:
            raise SourceError(
                f"cache {cache!r} has keys of {', '.join(keys)}; say which columns they are: "
                + " ".join(f"--key {name}" for name in keys)
            )
        names = _fitting(cache, codes, keys)
        # In the order of the cache's own keys: those of another order would be others.
        if [names[name] for name in codes] != list(keys):
            raise SourceError(
                f"the keys of cache {cache!r} are {', '.join(keys)}; name them in this order: --key"
            )
        return names, binary_type_of(entity.key_type, {names[name]: code for name, code in codes.items()})
    mine = java_type(next(iter(codes.values()), TypeCode.LONG))
    if len(codes) > 1 or TypeCode.BINARY_OBJECT in codes.values() or mine != entity.key_type:
        what = ", ".join(java_type(code) for code in codes.values()) or mine
        raise SourceError(
            f"cache {cache!r} has keys of {entity.key_type}, and those to be loaded are {what}; name "
            "others: --key"
        )
    return {}, None


def _fitting(cache: str, codes: Mapping[str, int], known: Mapping[str, str]) -> dict[str, str]:
    """Return the columns' names as the cache spells them.

    Raises:
        SourceError: The columns are not those of the cache.
    """
    spelled = {name.upper(): name for name in known}
    names = {name: spelled.get(name.upper(), "") for name in codes}
    extra = [name for name, found in names.items() if not found]
    missing = sorted(set(known) - set(names.values()))
    other = [
        f"{name} is {java_type(code)} and has to be {known[names[name]]}"
        for name, code in codes.items()
        if names[name] and java_type(code) not in (known[names[name]], *_WIDENED.get(known[names[name]], ()))
    ]
    if extra or missing or other:
        told = [
            *([f"it has no column {', '.join(extra)}"] if extra else []),
            *(
                [
                    f"{', '.join(missing)} is missing"
                    if len(missing) == 1
                    else f"{', '.join(missing)} are missing"
                ]
                if missing
                else []
            ),
            *other,
        ]
        raise SourceError(
            f"the columns do not fit the table of cache {cache!r}, and nothing was written: {'; '.join(told)}. Rename "
            "or convert them (files of text: --dtype NAME=TYPE)"
        )
    return names


def check_zones(client: Client, rows: CheckedRows) -> None:
    """Refuse dates and times of day where a node would show others: SQL's are in the zone of the node.

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
        except ServerError:  # no SQL on this node, and nobody to show anything
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
    """Return the SQL column of keys of one type."""
    return key[0] if len(key) == 1 else "ID"
