"""How many rows of a SQL table each node has."""

from __future__ import annotations

import uuid

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.errors import ConnectionFailed
from ignite_tf_magic.protocol import sql


def rows_by_node(client: Client, table: str) -> dict[uuid.UUID, int]:
    """Ask each node for the rows of which it has the primary copy; one that cannot be reached is left out.

    Args:
        client: Of the cluster.
        table: As a statement names it.

    Raises:
        ServerError: The table cannot be read.
        ConnectionLost: A node went away.
    """
    request = sql.execute(f"SELECT COUNT(*) FROM {table}", (), 1, local=True)  # noqa: S608  a quoted name
    found = {}
    for node in client.nodes():
        try:
            with client.router.borrowed(node) as channel:
                ((count,),) = channel.call(request, sql.parse_result).rows
        except ConnectionFailed:
            continue
        found[node.node_id] = int(count)
    return found
