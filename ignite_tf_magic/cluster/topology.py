"""Whether the data has moved, and whether this side of the cluster is the one that may act.

Asked in a thread of its own: a cluster that changes may take long to answer.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.config import ConnectOptions, Endpoint
from ignite_tf_magic.errors import ConnectionFailed, IgniteTfError
from ignite_tf_magic.protocol.affinity import PartitionMap

_POLL_S = 0.5
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What the cluster said last.

    Attributes:
        asked_at: When the question was sent, on the monotonic clock.
        owners: Fingerprint of the cache's primary owners; None when they could not be asked for.
        settled_s: For how long they have been these.
        endpoints: Every address of every node, as "host:port".
        error: Why nothing could be asked, in words.
    """

    asked_at: float = 0.0
    owners: str | None = None
    settled_s: float = 0.0
    endpoints: frozenset[str] = frozenset()
    error: str | None = None

    def has_majority_of(self, topology: Sequence[str]) -> bool:
        """Tell whether most of these nodes are there; of exactly half, the half with the first one counts."""
        if not topology:
            return self.error is None
        present = [node for node in topology if node in self.endpoints]
        return 2 * len(present) > len(topology) or (
            2 * len(present) == len(topology) and topology[0] in self.endpoints
        )


def fingerprint(partition_map: PartitionMap) -> str:
    """Sum up who owns which partition."""
    lines: Iterable[str] = (
        f"{node}:{','.join(map(str, sorted(partitions)))}"
        for node, partitions in partition_map.owners.items()
    )
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def connect_to_majority(options: ConnectOptions, topology: Sequence[str]) -> Client:
    """Connect to a node that sees most of these nodes: after a cut, single ones may go on as clusters of their own.

    Args:
        options: How to reach the cluster; its endpoints are tried first, in their order.
        topology: "host:port" of the nodes that make the whole; empty accepts any node.

    Raises:
        ConnectionFailed: No node sees so many.
    """
    others = [Endpoint.parse(node) for node in topology]
    answered = 0
    for endpoint in dict.fromkeys((*options.endpoints, *others)):
        try:
            client = connect(
                replace(options, endpoints=(endpoint,), timeout_s=min(options.timeout_s, _CONNECT_S))
            )
        except IgniteTfError:
            continue
        with ExitStack() as failed:
            failed.callback(client.close)
            if Sight(endpoints=all_endpoints(client.nodes())).has_majority_of(topology):
                failed.pop_all()
                return client
            answered += 1
    raise ConnectionFailed(
        f"no Ignite node sees most of {', '.join(topology) or 'the cluster'} ({answered} answered, each with a part of "
        "the cluster). Restart the nodes that have lost the others: they do not come back by themselves"
    )


def connect_to_most(options: ConnectOptions) -> Client:
    """Connect to a cluster of which only the configured endpoints are known, not to a node that was cut off from it.

    When the first node to answer sees half of as many nodes as are configured, or fewer, the others are asked, too.

    Raises:
        ConnectionFailed: No node answers.
    """
    found = connect(options)
    num_seen = len(found.nodes())
    for endpoint in options.endpoints if 2 * num_seen <= len(options.endpoints) else ():
        try:
            other = connect(
                replace(options, endpoints=(endpoint,), timeout_s=min(options.timeout_s, _CONNECT_S))
            )
        except IgniteTfError:
            continue
        with ExitStack() as closing:
            closing.callback(other.close)
            if (num_nodes := len(other.nodes())) > num_seen:
                closing.pop_all()
                found.close()
                found, num_seen = other, num_nodes
    return found


def all_endpoints(nodes: Iterable[Node]) -> frozenset[str]:
    """Collect every address of every node, as "host:port"."""
    return frozenset(str(endpoint) for node in nodes for endpoint in node.endpoints)


class TopologyWatch(Closing):
    """Looks at the cluster twice a second.

    Args:
        connect: Connects to the cluster; called anew after it was lost, and when too little of it was seen.
        cache: The cache whose owners are watched.
        topology: "host:port" of the nodes that make the whole.
    """

    def __init__(self, connect: Callable[[], Client], cache: str, topology: Sequence[str]) -> None:
        self._connect = connect
        self._cache = cache
        self._topology = topology
        self._client: Client | None = None
        self._since = time.monotonic()
        self._closing = threading.Event()
        self.sight = Sight(error="the cluster has not been asked yet")
        self._thread = threading.Thread(target=self._watch, name=f"topology-{cache}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._closing.wait(_POLL_S):
            self.sight = self._look()
            if not self.sight.has_majority_of(self._topology):
                self._forget()  # another node may see more

    def _look(self) -> Sight:
        asked_at = time.monotonic()
        try:
            if self._client is None:
                self._client = self._connect()
            nodes = self._client.nodes()
            owners = fingerprint(self._client.cache(self._cache).partition_map())
        except IgniteTfError as error:
            self._forget()
            return Sight(asked_at, error=str(error))
        if owners != self.sight.owners:
            self._since = asked_at
        return Sight(asked_at, owners, asked_at - self._since, all_endpoints(nodes))

    def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        """Stop looking. A look under way may go on for as long as the cluster lets it."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)
        if not self._thread.is_alive():
            self._forget()
