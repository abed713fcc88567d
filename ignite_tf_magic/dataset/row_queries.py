"""Has the cluster pick out rows and fields by SQL, so that only requested data leaves the nodes.

A table has only those rows of its cache that are of its own types. Where such rows would be missed silently,
`ChunkReader` looks for them if it has found fewer rows than the cache has.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.owner_query import RowQuery
from ignite_tf_magic.client.sql import SqlClient, as_argument
from ignite_tf_magic.client.sql_tables import CacheTable, table_of
from ignite_tf_magic.dataset.options import ReadOptions
from ignite_tf_magic.errors import ConfigError, QueryError
from ignite_tf_magic.protocol.layout import Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.ops import CODE_OF_JAVA_TYPE, TypeCode
from ignite_tf_magic.protocol.walk import row_bytes
from ignite_tf_magic.serialization.sql_text import in_quotes, is_one_condition, num_marks

# For these types a cell is the same as the field: the same type and the same value.
_ALIKE = frozenset(
    (
        *(TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG, TypeCode.FLOAT, TypeCode.DOUBLE),
        *(TypeCode.BOOL, TypeCode.STRING, TypeCode.UUID, TypeCode.TIMESTAMP, TypeCode.BYTE_ARRAY),
    )
)
_VARIABLE_CELL_BYTES = 256
# From a plan of Ignite's H2. Without this mark a node would gather all rows to sort them.
_BY_KEY, _SORTED = " ORDER BY _KEY", "index sorted"
_HEAD_BYTES = 64  # of a key that is an object
# A cell costs a node about as much time as 80 bytes of a row that is sent whole: see docs/decisions.md.
WORTH = 3
_CELL_COST_BYTES = 24


@dataclass(frozen=True, slots=True)
class Picked:
    """What is read of a cache in place of its rows.

    Attributes:
        query: The query that returns it.
        layout: Its layout; the columns are those of the rows.
        has_condition: Whether there may be fewer rows than the cache has.
        is_ordered: Whether rows come in the order of their keys, which does not depend on the owners.
    """

    query: RowQuery
    layout: RowLayout
    has_condition: bool
    is_ordered: bool = True


def pick(options: ReadOptions, cache: Cache, layout: RowLayout, mean_row_bytes: int) -> Picked | None:
    """Return what the cluster is to send of each row; None if whole rows are to be read.

    Args:
        options: Their fields are picked out if they are a small part of a row.
        cache: The cache.
        layout: The layout of its rows, restricted to what is read.
        mean_row_bytes: Mean stored size of a row.

    Raises:
        ConfigError: There is a condition, and the cache has no SQL table.
        QueryError: The cluster rejects the condition.
    """
    is_worth_it = options.fields is not None and _is_small_part(layout, mean_row_bytes)
    if options.where is None and not is_worth_it:
        return None
    sql = SqlClient(options.connect)
    table, why_none = table_of(sql.query, cache)
    if table is None:
        if options.where is None:
            return None
        raise ConfigError(
            f"where= is an SQL condition, but cache {cache.name!r} has no table for it: {why_none}"
        )
    cells = _cells(layout, table) if is_worth_it else None
    if options.where is None:
        return _picked_fields(sql, table, cells) if cells else None
    columns, found = cells or (("_VAL",), layout)
    args = tuple(map(as_argument, options.where_args))
    condition = f" WHERE (\n{options.where}\n)"
    ordered = _query(table, columns, found, condition + _BY_KEY, args)
    plan = _plan(sql, ordered)
    if _SORTED in plan:
        return Picked(ordered, found, has_condition=True)
    if plan and not plan.startswith("SELECT"):  # another engine may ignore partitions
        raise ConfigError("where= needs Ignite's SQL engine H2, but this cluster uses another one")
    query = _query(table, columns, found, condition, args)
    return Picked(query, found, has_condition=True, is_ordered=False)


def _picked_fields(
    sql: SqlClient, table: CacheTable, cells: tuple[tuple[str, ...], RowLayout]
) -> Picked | None:
    query = _query(table, *cells, _BY_KEY)
    with suppress(QueryError):
        if _SORTED in _plan(sql, query):
            return Picked(query, cells[1], has_condition=False)
    return None


def _plan(sql: SqlClient, query: RowQuery) -> str:
    """Return the plan by which each node will run a query; empty if Ignite sees that it has no rows."""
    rows = sql.query(f"EXPLAIN {query.statement}", query.args).rows
    return str(rows[0][0]) if rows else ""


def check_condition(where: str | None, args: Sequence[object]) -> None:
    """Raise if `where` is not a condition of one statement.

    Raises:
        ConfigError: The condition is empty, ends a statement or asks for other rows, or the number of arguments does
            not fit.
    """
    if where is None:
        if args:
            raise ConfigError("where_args= are the values of the ? in where=, which is missing")
        return
    if not is_one_condition(where):
        raise ConfigError(
            f'where={where!r}: write one condition over the columns of the cache\'s table, as where="LABEL < ?", '
            "where_args=[5]; a SELECT in it would see only some of the other rows"
        )
    if num_marks(where) != len(args):
        raise ConfigError(f"where={where!r} has {num_marks(where)} ? and where_args= {len(args)} values")


def _is_small_part(layout: RowLayout, mean_row_bytes: int) -> bool:
    cells = [layout.key, *(child for _, child in _children(layout.value))]
    return WORTH * sum(map(_cell_bytes, cells)) <= mean_row_bytes


def _cell_bytes(node: Node) -> int:
    if not isinstance(node, Leaf) or not node.is_fixed:
        return _VARIABLE_CELL_BYTES
    return 0 if node.is_nullness else _CELL_COST_BYTES + row_bytes(node)


def _children(value: Node) -> Sequence[tuple[int, Node]]:
    return value.fields if isinstance(value, ObjectNode) else ((0, value),)


def _cells(layout: RowLayout, table: CacheTable) -> tuple[tuple[str, ...], RowLayout] | None:
    """Return the table's columns for the fields of a layout, and their layout; None if impossible."""
    value = layout.value
    if not isinstance(value, ObjectNode) or len(value.types) != 1:
        return None
    columns = []
    for _, leaf in value.fields:
        if not isinstance(leaf, Leaf):
            return None
        if leaf.is_nullness:
            continue
        column = table.column_of(leaf.path)
        if column is None or leaf.code not in _ALIKE or CODE_OF_JAVA_TYPE.get(column.java_type) != leaf.code:
            return None
        columns.append(in_quotes(column.name))
    return tuple(columns), RowLayout(layout.key, ObjectNode(value.path, (), value.fields))


def _query(
    table: CacheTable, columns: Sequence[str], layout: RowLayout, clause: str, args: tuple[object, ...] = ()
) -> RowQuery:
    statement = f"SELECT _KEY, {', '.join(columns)} FROM {table.quoted}{clause}"  # noqa: S608  names in quotes
    return bounded(RowQuery(statement, args, 1 + len(columns)), layout)


def bounded(query: RowQuery, layout: RowLayout) -> RowQuery:
    """Add the row size to a query that sends only cells of fixed size.

    Whole rows have no such size, because the nodes also send fields that are not read.
    """
    leaves, value = layout.leaves(), layout.value
    if not (isinstance(value, ObjectNode) and not value.types and all(leaf.is_fixed for leaf in leaves)):
        return query
    return replace(query, row_bytes=_HEAD_BYTES + sum(5 + row_bytes(leaf) for leaf in leaves))
