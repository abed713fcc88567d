"""Fields are read by the names in rows and in SQL, even if a table's aliases swap and shadow names."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyignite import Client, GenericObjectMeta
from pyignite.datatypes import ByteArrayObject, DoubleObject
from pyignite.datatypes.prop_codes import PROP_NAME, PROP_QUERY_ENTITIES, PROP_SQL_SCHEMA

from ignite_tf_magic import batches
from ignite_tf_magic.errors import SchemaError

NAMES = ("price", "priceEur", "Label", "x", "Y")
ALIASES = (*(name.upper() for name in NAMES), "A", "B")
NUM_ROWS = 20
CACHE = "ALIASED_FIELDS"


@dataclass(frozen=True)
class Schema:
    """The field names of the values in order, and the SQL columns of the fields that the table declares."""

    fields: tuple[str, ...]
    columns: dict[str, str]


@st.composite
def schemas(draw):
    fields = draw(st.lists(st.sampled_from(NAMES), min_size=2, unique=True))
    declared = draw(st.lists(st.sampled_from(fields), min_size=1, unique=True))
    aliases = draw(
        st.lists(st.sampled_from(ALIASES), min_size=len(declared), max_size=len(declared), unique=True)
    )
    return Schema(tuple(fields), dict(zip(declared, aliases, strict=True)))


def check(clients, schema: Schema) -> None:
    session, pyignite, node = clients
    make(pyignite, schema)
    whole = read(node)
    values = {name: dict(zip(whole["key"], whole["val"][name], strict=True)) for name in schema.fields}
    for at, name in enumerate(schema.fields):
        assert values[name] == {key: 1000.0 * at + key for key in range(NUM_ROWS)}
        same_by(clients, name, values[name])
    for field, column in schema.columns.items():
        others = {name for name in schema.fields if name.upper() == column and name != field}
        if column in schema.fields:
            same_by(clients, column, values[column])
        elif others:
            with pytest.raises(SchemaError, match="which fits the fields"):
                read(node, [column])
        else:
            same_by(clients, column, values[field])
    for column in session.columns(CACHE).columns:
        if not column.is_key:
            assert column.sql_column == schema.columns.get(column.name)


def same_by(clients, name: str, values: dict[int, float]) -> None:
    """Check that whole rows, picked fields and the profile resolve a name to the same field."""
    session, _, node = clients
    found = read(node, [name])
    ((_, column),) = found["val"].items()
    assert dict(zip(found["key"], column, strict=True)) == values
    (profiled,) = session.profile(CACHE, [name]).columns
    assert (profiled.least, profiled.greatest) == (min(values.values()), max(values.values()))


def read(node, fields=None):
    (batch,) = batches(CACHE, NUM_ROWS, fields=fields, **node)
    return batch


def make(pyignite: Client, schema: Schema) -> None:
    """Make the cache anew. An array in each row makes picking fields by SQL worthwhile."""
    if CACHE in pyignite.get_cache_names():
        pyignite.get_cache(CACHE).destroy()
    type_name = "Row" + "".join(schema.fields)
    types = OrderedDict([*((name, DoubleObject) for name in schema.fields), ("array", ByteArrayObject)])
    row = GenericObjectMeta("Row", (), {}, type_name=type_name, schema=types)
    entity = {
        "table_name": CACHE,
        "key_field_name": None,
        "key_type_name": "java.lang.Long",
        "field_name_aliases": [
            {"field_name": name, "alias": column} for name, column in schema.columns.items()
        ],
        "query_fields": [{"name": name, "type_name": "java.lang.Double"} for name in schema.columns],
        "query_indexes": [],
        "value_type_name": type_name,
        "value_field_name": None,
    }
    cache = pyignite.create_cache(
        {PROP_NAME: CACHE, PROP_SQL_SCHEMA: "PUBLIC", PROP_QUERY_ENTITIES: [entity]}
    )
    for key in range(NUM_ROWS):
        values = {name: 1000.0 * at + key for at, name in enumerate(schema.fields)}
        cache.put(key, row(**values, array=[0] * 600))


@given(schema=schemas())
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_mean_the_same_field_however_it_is_read(clients, schema):
    check(clients, schema)


@pytest.mark.nightly
@given(schema=schemas())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_mean_the_same_field_in_two_hundred_schemas(clients, schema):
    """Nightly. Shorter: test_names_mean_the_same_field_however_it_is_read"""
    check(clients, schema)
