"""Reads the rows of a SELECT over one table, each worker those of its partitions.

This is possible only if Ignite's plan allows it. Ignite runs a statement in two parts, which EXPLAIN shows: what each
node does with its rows, and what happens to the nodes' results. If the second part only concatenates rows, a part of
the partitions gives a part of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.owner_query import RowQuery
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.regions import note_regions
from ignite_tf_magic.client.sql import SqlClient, as_argument
from ignite_tf_magic.client.sql_types import CACHE_OF_TABLE, declared_columns, spelled
from ignite_tf_magic.dataset.deal import uncounted
from ignite_tf_magic.dataset.generated_pages import finished, generated
from ignite_tf_magic.dataset.kept_client import KeptClient
from ignite_tf_magic.dataset.options import ReadOptions
from ignite_tf_magic.dataset.paged import PagedDataset
from ignite_tf_magic.dataset.passes import EpochTracker
from ignite_tf_magic.dataset.recipe import Pages, Recipe, ShuffleOrder
from ignite_tf_magic.dataset.row_queries import Picked, bounded
from ignite_tf_magic.dataset.source import Source, choose_partitions, look_at_rows, opened, whole_baseline
from ignite_tf_magic.dataset.structure import row_spec
from ignite_tf_magic.errors import ConfigError, EmptyCache
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.objects import BinaryType, name_id
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.serialization.sql_text import with_first_column
from ignite_tf_magic.settings.options import ConnectOptions

_PART = r'"(?:[^"]|"")+"|\w+'
_FROM = re.compile(rf"\bFROM\s+({_PART})\.({_PART})(?=\s|$)")
_NOISE = re.compile(r"'(?:[^']|'')*'|/\*.*?\*/", re.DOTALL)
_OF_ALL_ROWS = re.compile(
    r"""\b(?:DISTINCT|GROUP\s+BY|HAVING|LIMIT|OFFSET|FETCH|UNION|EXCEPT|INTERSECT|JOIN|ROWNUM|__Z1)\b
    | \b(?:COUNT|SUM|AVG|MIN|MAX|GROUP_CONCAT|ARRAY_AGG|STDDEV\w*|VAR\w*|BOOL_\w+|MEDIAN|SELECTIVITY)\(""",
    re.VERBOSE,
)
_UNKNOWN = (TypeCode.NULL, TypeCode.BINARY_OBJECT)


def cache_of(connect: ConnectOptions, statement: str, args: Sequence[Any]) -> str:
    """Return the cache whose rows a statement yields one by one.

    Raises:
        ConfigError: It is not a SELECT over one table, or it combines rows.
        EmptyCache: It can yield no row, whatever the table contains.
        QueryError: The cluster rejects it.
    """
    sql = SqlClient(connect)
    plan = [str(row[0]) for row in sql.query(f"EXPLAIN {statement}", args).rows]
    if not plan:  # Ignite detects a condition that contradicts itself
        raise EmptyCache(f"{statement!r} can never return a row")
    parts = [_NOISE.sub(" ", part) for part in plan]
    tables = _FROM.findall(parts[0])
    is_plain = len(tables) == 1 and parts[0].count("SELECT") == 1 and not _OF_ALL_ROWS.search(parts[0])
    if not is_plain or any(_OF_ALL_ROWS.search(part) or "(" in part for part in parts[1:]):
        raise ConfigError(
            f"{statement!r} cannot be divided among workers, because it is not a plain SELECT from one table, without "
            "joins, groups, DISTINCT, LIMIT and other SELECTs in it. Query it to a frame (%ignite_sql --to pandas), or "
            "write its rows into a table first"
        )
    names = [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in tables[0]]
    ((cache,),) = sql.query(CACHE_OF_TABLE, names).rows
    return str(cache)


def rows_of(options: ReadOptions, statement: str, args: Sequence[Any], *, assigned: bool) -> PagedDataset:
    """Return the rows of a statement over a cache's table, with the names of its columns.

    Raises:
        EmptyCache: There is no row.
        SchemaError: A column has no tensor form.
    """
    source = open_rows(options, statement, args)
    everything = replace(options, partitions=None, assignment=None)

    def whole() -> Recipe:
        return _recipe(open_rows(everything, statement, args), everything)

    recipe = _recipe(source, options)
    return PagedDataset(replace(recipe, whole=whole) if assigned else recipe)


def _recipe(source: Source, options: ReadOptions) -> Recipe:
    spec = _spec(source)

    def pages(order: ShuffleOrder | None, passes: EpochTracker | None) -> Pages:
        found = generated(source, spec, order, passes, is_meant=True)
        is_share = options.partitions is not None or options.local
        return finished(found, spec, is_share=is_share).map(lambda page: page["val"])

    share = source.shard(options.assignment, counts=False)
    return Recipe(pages, share=share, uncounted=uncounted(options.assignment) if share else None)


def _spec(source: Source) -> Any:
    if source.layout is None:
        raise EmptyCache(f"cache {source.cache!r} is empty")
    return row_spec(source.layout)


def open_rows(options: ReadOptions, statement: str, args: Sequence[Any]) -> Source:
    """Connect and sample some rows of a statement over the table of a cache; see `open_source`.

    Raises:
        EmptyCache: There is no row.
        SchemaError: A column has no tensor form.
    """
    return opened(options, partial(_look_at, options, statement, tuple(map(as_argument, args))))


def _look_at(
    options: ReadOptions,
    statement: str,
    args: tuple[Any, ...],
    client: Client,
    clients: KeptClient,
) -> Source:
    cache = Cache(client, options.cache)
    baseline = whole_baseline(options, cache)
    partitions = choose_partitions(options, client, baseline)
    sizes = PageSizes(options.page_rows)
    note_regions(client, sizes, baseline, partitions)
    cells = _cells_of(options.connect, client, statement)
    query = RowQuery(with_first_column(statement, "_KEY"), args, 1 + len(cells.fields))
    finder = LayoutFinder(client.types.find, None, options.fill, options.variable, options.nulls, cells)
    num_bytes = look_at_rows(cache.scan(sorted(baseline.owners), sizes, baseline, query), finder)
    if not finder.num_rows:
        raise EmptyCache(f"{statement!r} returns no rows now, so their types are unknown")
    layout = finder.layout()
    if finder.left_out:
        raise next(iter(finder.left_out.values()))
    picked = Picked(bounded(query, layout), layout, has_condition=True, is_ordered=False)
    mean = num_bytes // finder.num_rows
    return Source(cache.name, partitions, layout, baseline, mean, sizes, clients, picked)


def _cells_of(connect: ConnectOptions, client: Client, statement: str) -> BinaryType:
    """Describe the cells of a row as the fields of a type."""
    found = next(filter(None, (declared_columns(each, connect, statement) for each in connect.endpoints)), ())
    if not found:
        raise ConfigError(
            f"the nodes do not name the columns of {statement!r}: they refuse ODBC, or it returns no rows"
        )
    names = spelled(client.router.call, found)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two columns of {statement!r} are called {name!r}: rename one with AS ...")
    fields = {
        name: (TypeCode.NULL if column.code in _UNKNOWN else column.code, number)
        for number, (name, column) in enumerate(zip(names, found, strict=True))
    }
    return BinaryType(name_id("a row"), "a row", fields, {})
