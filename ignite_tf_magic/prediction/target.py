"""Creates the cache that a prediction fills, with the source's configuration, so that rows are on the same nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import java_type, table_field
from ignite_tf_magic.data.row_types import free_type, value_type_name
from ignite_tf_magic.errors import PredictionMismatch, ServerError
from ignite_tf_magic.prediction.outputs import Columns
from ignite_tf_magic.protocol.encode import wire_code
from ignite_tf_magic.protocol.layout import Leaf, RowLayout
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import BinaryType
from ignite_tf_magic.serialization.sql_text import folded_name

_ONLY_KEY = "ID"


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The SQL columns of a cache's keys.

    Attributes:
        type_name: The keys' Java type, or the binary type of objects.
        fields: Their columns.
        only: The column that is the whole key, if there is one.
    """

    type_name: str
    fields: tuple[QueryField, ...]
    only: str | None = None


def make_target(client: Client, source: Cache, layout: RowLayout, name: str, columns: Columns) -> str:
    """Create the cache for a model's outputs if it does not exist; returns the name of its values' type.

    Any worker may be the first. All workers create the same cache, because they have the same model.

    Raises:
        PredictionMismatch: The cache cannot be created for these outputs.
    """
    binary_type = _value_type(client, name, columns)
    like = source.config()
    keys = _key_columns(like, layout)
    fields = [table_field(field, java_type(code)) for field, (code, _) in binary_type.fields.items()]
    _check_names(name, keys, fields)
    entity = QueryEntity(
        folded_name(name), keys.type_name, binary_type.name, (*keys.fields, *fields), keys.only
    )
    config = CacheConfig(
        name, backups=like.backups, mode=like.mode, sql_schema="PUBLIC", query_entities=(entity,)
    )
    try:
        made = client.get_or_create_cache(config).config()
    except ServerError as error:
        raise PredictionMismatch(
            f"cache {name!r} cannot be made for the model's outputs {', '.join(columns)}: {error.server_message}"
        ) from error
    _check_made(made, entity)
    return binary_type.name


def _value_type(client: Client, name: str, columns: Columns) -> BinaryType:
    codes = {field: wire_code(field, column) for field, column in columns.items()}
    return free_type(client, value_type_name(name), codes)


def _key_columns(like: CacheConfig, layout: RowLayout) -> KeyColumns:
    """Return the key columns of the source's table, or of its rows if it has no single table."""
    if len(like.query_entities) == 1:
        entity = like.query_entities[0]
        columns = tuple(
            replace(each, is_key=True)
            for each in entity.fields
            if each.is_key or each.name == entity.key_field
        )
        return KeyColumns(entity.key_type, columns, entity.key_field)
    if isinstance(layout.key, Leaf):
        java = java_type(layout.key.code)
        return KeyColumns(java, (table_field(_ONLY_KEY, java, is_key=True),), _ONLY_KEY)
    first, *others = layout.key.types
    if others:
        names = ", ".join(each.name for each in layout.key.types)
        raise PredictionMismatch(f"the keys have several types, but those of a table have one: {names}")
    fields = first.fields.items()
    return KeyColumns(
        first.name, tuple(table_field(name, java_type(code), is_key=True) for name, (code, _) in fields)
    )


def _check_names(cache: str, keys: KeyColumns, fields: list[QueryField]) -> None:
    """Raise PredictionMismatch if SQL could not distinguish an output from a key or from another output."""
    seen: dict[str, str] = {each.name.upper(): each.name for each in keys.fields}
    for each in fields:
        if each.name.upper() in seen:
            raise PredictionMismatch(
                f"cache {cache!r} cannot have a column for the model's output {each.name!r} beside its column "
                f"{seen[each.name.upper()]!r}; give the output another name"
            )
        seen[each.name.upper()] = each.name


def _check_made(made: CacheConfig, wanted: QueryEntity) -> None:
    """Raise PredictionMismatch if the cache already existed with another type of values."""
    there = [each.value_type for each in made.query_entities]
    if there != [wanted.value_type]:
        raise PredictionMismatch(
            f"cache {made.name!r} exists with values of type {', '.join(there) or 'unknown to SQL'}, not "
            f"{wanted.value_type}; predict into another cache, or again with --replace"
        )
