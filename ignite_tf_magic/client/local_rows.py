"""Asks nodes for the number of rows in nodes and partitions, without transferring rows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.errors import ConnectionFailed
from ignite_tf_magic.protocol import metrics, sql
from ignite_tf_magic.protocol.ops import Feature
from ignite_tf_magic.serialization.sql_text import in_quotes

_TABLES = "SELECT SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES WHERE CACHE_NAME = ?"


def rows_by_node(client: Client, cache_name: str) -> dict[uuid.UUID, int]:
    """Return the number of rows of which each node has the primary copy. The time does not grow with the rows.

    Nodes that cannot be reached, or do not report, are left out.

    Raises:
        ServerError: Nodes deny this user the view, or lack Ignite's module for SQL.
        ConnectionLost: A node went away.
    """
    found = {}
    for node in client.nodes():
        try:
            with client.router.borrowed(node) as channel:
                count = channel.call(metrics.primary_rows(cache_name), metrics.parse_primary_rows)
        except ConnectionFailed:
            continue
        if count is not None:
            found[node.node_id] = count
    return found


def table_of(cache: Cache) -> str | None:
    """Return the name of a cache's SQL table, as in a statement; None if it has none or several.

    Raises:
        ServerError: The cluster has no SQL.
    """
    with cache.client.router.borrowed(cache.client.nodes()[0]) as channel:
        tables = channel.call(sql.execute(_TABLES, [cache.name], 2), sql.parse_result).rows
    return ".".join(map(in_quotes, tables[0])) if len(tables) == 1 else None


def rows_of_partitions(client: Client, node: Node, table: str, partitions: Sequence[int]) -> int | None:
    """Return the number of rows in some partitions of a node. The node examines each of their rows.

    Returns:
        The number of rows in the table; None if the node cannot query some partitions alone.

    Raises:
        ServerError: The table cannot be read.
        ConnectionFailed, ConnectionLost: The node cannot be reached.
    """
    request = sql.execute(f"SELECT COUNT(*) FROM {table}", (), 1, partitions=partitions)  # noqa: S608  in quotes
    with client.router.borrowed(node) as channel:
        if Feature.QUERY_PARTITIONS not in channel.features:
            return None
        ((count,),) = channel.call(request, sql.parse_result).rows
    return int(count)
