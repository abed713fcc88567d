"""Checks as a client whether started nodes are ready."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.embedded.config_xml import LOOPBACK
from ignite_tf_magic.embedded.record import EmbeddedCluster, refreshed
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    EmbeddedError,
)
from ignite_tf_magic.protocol.messages import CacheConfig

_POLL_S = 0.1
_PARTITIONS_PER_NODE = 16  # with fewer partitions, a node may own none even if they are balanced


def probe(cluster: EmbeddedCluster) -> None:
    """Activate the cluster if needed, and check that it consists of our nodes only.

    Without persistence, also check that caches can be created.

    Raises:
        EmbeddedError: Other nodes are in the topology.
    """
    with connect(cluster.connect_options) as client:
        if not client.is_active():  # the first start with persistence
            client.set_active(True)
        ours = {node.port for node in cluster.nodes}
        theirs = {endpoint.port for node in client.nodes() for endpoint in node.endpoints}
        if ours != theirs:
            raise EmbeddedError(
                f"the nodes on {LOOPBACK} ports {sorted(ours)} formed a cluster with ports {sorted(theirs)}; another "
                "program started Ignite nodes on the discovery ports chosen. Try again."
            )
        if cluster.settings.get("persist"):
            return  # a node that died now would keep the probe cache on its disk, and could not join again
        name = f"ignite-tf-probe-{uuid.uuid4().hex[:8]}"
        client.create_cache(CacheConfig(name=name))
        client.destroy_cache(name)


def await_agreement(cluster: EmbeddedCluster, timeout_s: float) -> EmbeddedCluster:
    """Block until the live nodes see exactly each other; returns the refreshed cluster.

    If a dead node returned before the others noticed its death, it would get partitions without their rows.

    Raises:
        DeadlineExceeded: The nodes still count a dead one, have lost each other, or do not answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        cluster = refreshed(cluster)
        living = sum(node.alive for node in cluster.nodes)
        try:
            with ExitStack() as opened:
                seen: list[object] = [len(client.nodes()) for client in _client_of_each(cluster, opened)]
        except (ConnectionFailed, ConnectionLost) as error:  # a node may be dying at this moment
            seen = [error]
        if seen == [living] * living:
            return cluster
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"{living} embedded nodes run, but after {timeout_s:g} s they do not agree on the number of nodes: "
                f"{', '.join(map(str, seen))}. To start anew: ignite-tf local down"
            )
        time.sleep(_POLL_S)


def await_balanced(cluster: EmbeddedCluster, timeout_s: float) -> bool:
    """Block until each node is primary for its share of each cache, and all nodes agree on that.

    Returns:
        Whether this happened within `timeout_s`.
    """
    with ExitStack() as opened:
        clients = _client_of_each(cluster, opened)
        deadline = time.monotonic() + timeout_s
        while not all(_is_balanced(clients, name) for name in clients[0].cache_names()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    return True


def _client_of_each(cluster: EmbeddedCluster, opened: ExitStack) -> list[Client]:
    options = cluster.connect_options
    each = (replace(options, endpoints=(endpoint,)) for endpoint in options.endpoints)
    return [opened.enter_context(connect(one)) for one in each]


def _is_balanced(clients: Sequence[Client], cache: str) -> bool:
    try:
        seen = [client.cache(cache).partition_map() for client in clients]
    except CacheNotFound:  # destroyed meanwhile
        return True
    first = seen[0]
    if not first.partitioned or first.num_partitions < _PARTITIONS_PER_NODE * len(clients):
        return True
    num_owners = sum(bool(partitions) for partitions in first.owners.values())
    return num_owners == len(clients) and all(each.owners == first.owners for each in seen)
