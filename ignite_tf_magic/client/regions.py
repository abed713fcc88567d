"""Measures how full the nodes' data regions are, and refuses writes before a region is full."""

from __future__ import annotations

import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, IgniteTfError, RegionFull, ServerError
from ignite_tf_magic.protocol import metrics

_DEFAULT_REGION = "default"
MAX_SHARE = 0.9
_TRUST_S = 5.0
# Others write at the same time, and rows need more space in a node than on the wire. So only this share of the free
# space may be written before asking again.
_SPENT_SHARE = 0.25
_MIB = 1 << 20
_ASKED_AT_ONCE = 8
_ERROR_SHOWN = 200


@dataclass(frozen=True, slots=True)
class RegionUse:
    """The default data region of one node.

    Attributes:
        used_bytes: Bytes used by rows. Freed space counts as free.
        max_bytes: The size at which the node runs out of memory and stops.
    """

    node: Node
    used_bytes: int
    max_bytes: int

    @property
    def share(self) -> float:
        """The fill level, from 0 to 1."""
        return self.used_bytes / self.max_bytes if self.max_bytes else 0.0


def region_use(client: Client, nodes: Iterable[Node] | None = None) -> list[RegionUse]:
    """Ask every node how full its default data region is.

    If no region is called "default", the result has the fullest of those that are not Ignite's own. Two kinds of nodes
    are left out: those without Ignite's indexing module, which cannot report, and those that keep data on disk, because
    their memory does not run out.
    """
    return _asked(client, client.nodes() if nodes is None else nodes)[0]


def _asked(client: Client, nodes: Iterable[Node]) -> tuple[list[RegionUse], dict[Node, IgniteTfError]]:
    """Ask nodes. Return the fill levels, and the error of each node that did not answer."""
    found: list[RegionUse] = []
    silent: dict[Node, IgniteTfError] = {}
    for node in nodes:
        try:
            with client.router.borrowed(node) as channel:
                regions = channel.call(metrics.data_regions(), metrics.parse_regions)
        except (ServerError, ConnectionFailed, ConnectionLost) as error:
            silent[node] = error
            continue
        if _DEFAULT_REGION in regions:
            regions = {_DEFAULT_REGION: regions[_DEFAULT_REGION]}
        uses = [use for use in (_use(node, values) for values in regions.values()) if use]
        found += sorted(uses, key=lambda use: use.share)[-1:]
    return found, silent


def note_regions(client: Client, sizes: PageSizes, baseline: Baseline, partitions: Iterable[int]) -> None:
    """Ask the owners of partitions how full they are, if that makes a first read of the partitions faster.

    Nodes that do not answer stay unknown.
    """
    unread: dict[uuid.UUID, list[int]] = {}
    for partition in partitions:
        unread.setdefault(baseline.owners[partition], []).append(partition)
    nodes = [node for node in client.nodes() if sizes.lacks(node.node_id, unread.get(node.node_id, ()))]

    def ask(node: Node) -> None:
        with suppress(ServerError, ConnectionFailed, ConnectionLost), client.router.borrowed(node) as channel:
            used = channel.call(metrics.data_regions(), metrics.parse_used_bytes)
            sizes.note_region(node.node_id, used, baseline.rows_of_a_node)

    if nodes and baseline.rows_of_a_node:
        with ThreadPoolExecutor(min(len(nodes), _ASKED_AT_ONCE), "ask-regions") as pool:
            list(pool.map(ask, nodes))


def _use(node: Node, values: Mapping[str, int]) -> RegionUse | None:
    if not values.get("MaxSize") or values.get("CheckpointBufferSize"):
        return None
    return RegionUse(node, metrics.used_bytes(values), values["MaxSize"])


class RegionWatch:
    """Refuses writes before a node's data region is full. A node that runs out of memory stops, and others follow.

    Thread-safe.

    Args:
        client: The client whose nodes are asked.
        reserve_bytes: Minimum free bytes to keep; at least a tenth of each region stays free in any case.
    """

    def __init__(self, client: Client, reserve_bytes: int) -> None:
        self._client = client
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()
        self._allowed_bytes = 0.0
        self._until = 0.0
        self._has_warned = False
        self._unreached: set[uuid.UUID] = set()

    def check(self, num_bytes: int) -> None:
        """Check that each node has room for some bytes. Reserves nothing.

        Raises:
            RegionFull: A node has no room for them.
        """
        with self._lock:
            self._ask(num_bytes, at_least=0)

    def claim(self, num_bytes: int) -> None:
        """Reserve room for bytes that are about to be written to any node. Asks the nodes from time to time.

        Raises:
            RegionFull: A node has no room for them.
        """
        with self._lock:
            if num_bytes > self._allowed_bytes or time.monotonic() > self._until:
                self._ask(num_bytes, at_least=num_bytes)
            self._allowed_bytes -= num_bytes

    def _ask(self, num_bytes: int, at_least: int) -> None:
        uses, silent = _asked(self._client, self._client.nodes())
        self._tell_of(silent)
        fullest = min(uses, key=self._free_bytes, default=None)
        free = self._free_bytes(fullest) if fullest else float("inf")
        if fullest and free < num_bytes:
            raise RegionFull(_described(fullest, num_bytes, max(free, 0)))
        self._until = time.monotonic() + _TRUST_S
        self._allowed_bytes = max(free * _SPENT_SHARE, at_least)

    def _tell_of(self, silent: Mapping[Node, IgniteTfError]) -> None:
        """Warn once about reachable nodes that do not report: nothing prevents them from running out of memory.

        An unreachable node may just have died while the cluster still lists it. It is reported if it stays unreachable.
        """
        stays = {node: error for node, error in silent.items() if self._does_not_tell(node, error)}
        self._unreached = {node.node_id for node in silent}
        there = {node.node_id for node in self._client.nodes()} if stays and not self._has_warned else set()
        left = {_where(node): str(error) for node, error in stays.items() if node.node_id in there}
        if left:
            self._has_warned = True
            warnings.warn(
                f"cannot check how full the data region of {', '.join(left)} is: "
                f"{next(iter(left.values()))[:_ERROR_SHOWN]}. The load continues without this check: a node whose "
                "region is full ends, with all its caches. Look at its metrics yourself, or allow SQL on its client "
                "port, which needs Ignite's module ignite-indexing",
                stacklevel=5,
            )

    def _does_not_tell(self, node: Node, error: IgniteTfError) -> bool:
        return isinstance(error, ServerError) or node.node_id in self._unreached

    def _free_bytes(self, use: RegionUse) -> float:
        return use.max_bytes - use.used_bytes - max(use.max_bytes * (1 - MAX_SHARE), self._reserve_bytes)


def _where(node: Node) -> str:
    return str(node.endpoints[0] if node.endpoints else node.node_id)


def _described(use: RegionUse, num_bytes: int, free: float) -> str:
    return (
        f"the Ignite node at {_where(use.node)} has filled {use.used_bytes / _MIB:,.0f} of the "
        f"{use.max_bytes / _MIB:,.0f} MiB of its data region; {num_bytes / _MIB:,.1f} MiB more would be written, but "
        f"only {free / _MIB:,.1f} may: a node whose region is full ends, with all its caches. Remove caches or files "
        "(ignite-tf sql 'DROP TABLE ...' of a CREATE TABLE, else session.client.destroy_cache(NAME); ignite-tf fs rm; "
        "ignite-tf prune), add nodes, or give them a larger data region (maxSize; ignite-tf local up --region)"
    )
