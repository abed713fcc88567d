"""Finds caches on real nodes by the names of their SQL tables, resolved as in a statement."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.client.table_names import TableName, cache_called, list_tables, near_names
from ignite_tf_magic.errors import CacheNameError, CacheNotFound
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField


@pytest.fixture
def query(ignite):
    return SqlClient(ignite.connect_options).query


@pytest.fixture
def made(client, query):
    """Make tables by statements and caches by configurations; all are removed after the test."""
    with ExitStack() as ends:

        def make(table=None, cache=None, columns="(ID INT PRIMARY KEY, X INT)", more=""):
            if cache is not None:
                ends.callback(client.destroy_cache, cache.name)
                return client.create_cache(cache)
            ends.callback(query, f"DROP TABLE {table}")
            return query(f"CREATE TABLE {table}{columns}{more}")

        yield make


def with_table(name, table, schema):
    fields = (QueryField("ID", "java.lang.Long", is_key=True), QueryField("X", "java.lang.Integer"))
    entity = QueryEntity(table, "java.lang.Long", f"Row of {name}", fields, "ID")
    return CacheConfig(name, sql_schema=schema, query_entities=(entity,))


def test_a_table_is_found_as_a_statement_finds_it(client, query, made):
    made("NAMED_KITTENS")
    made('"named Kittens"')
    made("NAMED_PUPPIES", more=' WITH "CACHE_NAME=Puppies of mine"')
    for name in ("NAMED_KITTENS", "named_Kittens", "public.named_kittens", '"PUBLIC"."NAMED_KITTENS"'):
        query(f"SELECT 1 FROM {name}")
        assert client.find_cache(name).name == "SQL_PUBLIC_NAMED_KITTENS"
    assert client.find_cache('"named Kittens"').name == "SQL_PUBLIC_named Kittens"
    made("named_größe")
    assert client.find_cache("named_größe").name == "SQL_PUBLIC_NAMED_GRÖßE"
    assert client.find_cache("named_puppies").name == "Puppies of mine"
    assert client.find_cache("Puppies of mine").name == "Puppies of mine"
    for name in ("named Kittens", '"named_kittens"', "OTHER.NAMED_KITTENS", '"', "", "a.b.c", "PUBLIC."):
        with pytest.raises(CacheNotFound):
            client.find_cache(name)
    with pytest.raises(CacheNotFound):
        client.cache("NAMED_KITTENS")


def test_a_caches_own_name_comes_first(client, made):
    made("NAMED_TWICE")
    assert client.find_cache("NAMED_TWICE").name == "SQL_PUBLIC_NAMED_TWICE"
    made(cache=CacheConfig("NAMED_TWICE"))
    assert client.find_cache("NAMED_TWICE").name == "NAMED_TWICE"
    assert client.find_cache("named_twice").name == "SQL_PUBLIC_NAMED_TWICE"


def test_a_name_of_several_tables_is_refused_unless_one_is_public(client, made):
    made(cache=with_table("named one", "NAMED_ALIKE", "NAMED_ONE"))
    assert client.find_cache("named_alike").name == "named one"
    made(cache=with_table("named two", "NAMED_ALIKE", None))  # its schema is named as the cache
    with pytest.raises(CacheNameError, match=r"NAMED_ONE\.NAMED_ALIKE.*'named one'.*'named two'"):
        client.find_cache("NAMED_ALIKE")
    assert client.find_cache("named_one.named_alike").name == "named one"
    assert client.find_cache('"named two".NAMED_ALIKE').name == "named two"
    for table in list_tables(client.router):
        if table.table == "NAMED_ALIKE":
            assert client.find_cache(table.in_full).name == client.find_cache(str(table)).name == table.cache
    made("NAMED_ALIKE")
    assert client.find_cache("named_alike").name == "SQL_PUBLIC_NAMED_ALIKE"


def test_an_unknown_name_is_near_to_both_kinds(client, made):
    made("NAMED_OWL")
    made(cache=CacheConfig("NAMED_OWLS"))
    with pytest.raises(CacheNotFound, match="did you mean 'NAMED_OWL' or 'NAMED_OWLS'"):
        client.find_cache("NAMED_OWLX")
    with pytest.raises(CacheNotFound, match="did you mean 'NAMED_OWL'"):
        client.find_cache("public.named_owle")
    with pytest.raises(CacheNotFound, match="did you mean 'SQL_PUBLIC_NAMED_OWL'"):
        client.cache("NAMED_OWL")


def test_one_cache_is_near_once():
    tables = [TableName("PUBLIC", "MNIST", "mnist"), TableName("s", "MNIST_OF", "of")]
    assert near_names("mnists", ["mnist", "of"], tables, as_tables=True) == ["mnist", '"s".MNIST_OF']
    assert near_names("mnists", ["mnist", "of"], tables, as_tables=False) == ["mnist", "of"]
    assert near_names("qqq", ["mnist"], tables, as_tables=True) == []


def test_quotes_in_a_name_are_written_twice():
    tables = [TableName("PUBLIC", 'a"b.C', "odd")]
    assert cache_called('"a""b.C"', tables) == "odd"
    assert cache_called('PUBLIC."a""b.C"', tables) == "odd"
    assert cache_called('"a"b.C"', tables) is None
    assert cache_called(str(tables[0]), tables) == "odd"
