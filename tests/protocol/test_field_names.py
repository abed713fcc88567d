"""A name identifies exactly one field of a cache, or is refused."""

from __future__ import annotations

import pytest

from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.field_names import FieldNames, sql_columns
from ignite_tf_magic.protocol.messages import QueryEntity, QueryField

PATHS = [("key", "id"), ("val", "id"), ("val", "price"), ("val", "priceEur"), ("val", "owner", "name")]
COLUMNS = {("val", "priceeur"): "PRICE", ("val", "owner", "name"): "NAME", ("key", "id"): "ID"}
NAMES = FieldNames(PATHS, COLUMNS)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("price", ("val", "price")),
        ("priceEur", ("val", "priceEur")),
        ("PRICEEUR", ("val", "priceEur")),
        ("val.price", ("val", "price")),
        ("id", ("val", "id")),
        ("key.id", ("key", "id")),
        ("KEY.ID", ("key", "id")),
        ("owner.name", ("val", "owner", "name")),
        ("NAME", ("val", "owner", "name")),
        ("name", ("val", "owner", "name")),
        ('"NAME"', ("val", "owner", "name")),
    ],
)
def test_a_name_means_the_field_that_is_spelled_so_and_else_the_sql_column(name, path):
    assert NAMES.find(name, "fields") == path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PRICE", "fields names 'PRICE', which fits the fields 'price' and 'priceEur': write one of these"),
        ("ID", "fields names 'ID', which fits the fields 'key.id' and 'id'"),
        (
            "prise",
            "there is none; did you mean price or priceEur[?] There are: id, key.id, owner.name, price",
        ),
    ],
)
def test_a_name_that_fits_two_fields_or_none_is_refused(name, words):
    with pytest.raises(SchemaError, match=words):
        NAMES.find(name, "fields")


def test_a_table_whose_key_fields_are_not_declared_names_no_columns():
    """In each row, Ignite then looks for a field in the key first."""
    fields = (QueryField("id", "java.lang.Long", column="ID"),)
    assert sql_columns(QueryEntity("T", "Key", "Row", fields)) == {}
    assert sql_columns(QueryEntity("T", "java.lang.Long", "Row", fields)) == {("val", "id"): "ID"}
