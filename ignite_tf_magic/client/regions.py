"""How full the memory for data is, on each node."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, ServerError
from ignite_tf_magic.protocol import metrics

DEFAULT_REGION = "default"


@dataclass(frozen=True, slots=True)
class RegionUse:
    """The default data region of one node.

    Attributes:
        used_bytes: Taken by rows; what was freed counts as free.
        max_bytes: Where the node runs out of memory, and ends.
    """

    node: Node
    used_bytes: int
    max_bytes: int

    @property
    def share(self) -> float:
        """How full it is, from 0 to 1."""
        return self.used_bytes / self.max_bytes if self.max_bytes else 0.0


def region_use(client: Client, nodes: Iterable[Node] | None = None) -> list[RegionUse]:
    """Ask every node how full its default data region is.

    Nodes that do not tell are left out: without Ignite's indexing module nobody can ask them, and where data is
    kept on disk, memory does not run out.
    """
    found = []
    for node in nodes if nodes is not None else client.nodes():
        try:
            with ExitStack() as on_error:
                channel = on_error.enter_context(client.router.open_to(node))
                values = channel.call(metrics.data_region(DEFAULT_REGION), metrics.parse_numbers)
                on_error.pop_all()
        except (ServerError, ConnectionFailed, ConnectionLost):
            continue
        client.router.give_back(channel)
        page_bytes = values.get("TotalAllocatedSize", 0) / max(values.get("TotalAllocatedPages", 0), 1)
        used = values.get("TotalUsedPages", 0) * page_bytes
        if values.get("MaxSize") and not values.get("PagesWritten"):
            found.append(RegionUse(node, round(used), values["MaxSize"]))
    return found
