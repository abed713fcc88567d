"""Watches the cluster's topology: has the data moved, and may this side of the cluster act?

The cluster is queried in a separate thread, because it may take long to answer while it changes.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ignite_tf_magic import client as thin_client
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import AuthenticationError, ConnectionFailed, IgniteTfError
from ignite_tf_magic.runs.hosts.host_names import is_non_identifying, plain_address, rank
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

if TYPE_CHECKING:
    from ignite_tf_magic.client.client import Client
    from ignite_tf_magic.client.router import Node
    from ignite_tf_magic.protocol.affinity import PartitionMap

_POLL_S = 0.1
_CONNECT_S = 5.0
_ANSWER_S = 2.0
_LAST_IP_KIND = 6  # of `rank`: higher kinds are addresses that every machine has, and names


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The latest known state of the cluster.

    Attributes:
        asked_at: When the request was sent, on the monotonic clock.
        owners: Fingerprint of the cache's primary owners; None if the request failed.
        settled_s: How long the owners have been the same.
        nodes: The endpoints that each node lists, as "host:port".
        error: Why the request failed, as text.
    """

    asked_at: float = 0.0
    owners: str | None = None
    settled_s: float = 0.0
    nodes: tuple[frozenset[str], ...] = ()
    error: str | None = None

    def shows_what(self, other: ClusterSnapshot) -> bool:
        """Return whether both snapshots show the same state, apart from times."""
        return (self.owners, self.nodes, self.error) == (other.owners, other.nodes, other.error)

    def has_majority_of(self, topology: Sequence[str]) -> bool:
        """Return whether most of these nodes are present; exactly half is enough if it includes the first node.

        Each present node counts as at most one of them. If the first node cannot be told from another one, half is not
        enough, because both halves might claim to include it.
        """
        if not topology:
            return self.error is None
        present = _present(topology, self.nodes)
        is_first_there = 0 in present and topology.count(topology[0]) == 1
        return 2 * len(present) > len(topology) or (2 * len(present) == len(topology) and is_first_there)


def _present(topology: Sequence[str], nodes: Sequence[frozenset[str]]) -> set[int]:
    """Return the indexes in `topology` of as many nodes as can be present at once, preferring earlier ones."""
    stands_for: dict[int, int] = {}

    def find(wanted: int, tried: set[int]) -> bool:
        for node, listed in enumerate(nodes):
            if node in tried or not _may_be(topology[wanted], listed):
                continue
            tried.add(node)
            if node not in stands_for or find(stands_for[node], tried):
                stands_for[node] = wanted
                return True
        return False

    return {wanted for wanted in range(len(topology)) if find(wanted, set())}


def _may_be(wanted: str, listed: frozenset[str]) -> bool:
    """Return whether a node with these endpoints may be the wanted one. Loopback counts only if it lists no others."""
    return wanted in listed and (not _tells_nothing(wanted) or all(map(_tells_nothing, listed)))


def _tells_nothing(endpoint: str) -> bool:
    return is_non_identifying(plain_address(endpoint.rpartition(":")[0]))


def topology_of(nodes: Collection[Node]) -> tuple[str, ...]:
    """Choose an endpoint for each node that identifies it, permanently and for everyone who asks.

    It is a "host:port" that the node itself lists, not the one that was dialled. If possible, no other node lists it.
    It is a loopback address only if the node lists no others. Of several, an endpoint is preferred that probably leads
    to the node from other machines, too. `ClusterSnapshot.has_majority_of` relies on this: either no other node has the
    first endpoint, or that endpoint is in the result twice.
    """
    candidates = [_outward(node) for node in nodes]
    listers = Counter(itertools.chain.from_iterable(candidates))
    machines = Counter(host for listed in candidates for host in {each.host for each in listed})

    def order(best_guess: Endpoint, endpoint: Endpoint) -> tuple[int, int, bool, int, str]:
        kind, text = rank(plain_address(endpoint.host))
        return max(kind, _LAST_IP_KIND), machines[endpoint.host], endpoint != best_guess, kind, text

    endpoints = []
    for node, listed in zip(nodes, candidates, strict=True):
        own = [endpoint for endpoint in listed if listers[endpoint] == 1]
        # If all are shared, all nodes that share the commonest one choose it, which shows that it is shared.
        commonest = min(listed, key=lambda each: (-listers[each], str(each)))
        endpoints.append(min(own, key=partial(order, node.endpoints[0]), default=commonest))
    times = Counter(endpoints)
    return tuple(map(str, sorted(endpoints, key=lambda each: (listers[each] > 1, -times[each], str(each)))))


def _outward(node: Node) -> list[Endpoint]:
    """Return the endpoints that a node lists; loopback only if it lists no others."""
    listed = list(dict.fromkeys(node.listed or node.endpoints))
    return [each for each in listed if not is_non_identifying(plain_address(each.host))] or listed


def fingerprint(partition_map: PartitionMap) -> str:
    """Return a hash of the partitions' owners."""
    lines: Iterable[str] = (
        f"{node}:{','.join(map(str, sorted(partitions)))}"
        for node, partitions in partition_map.owners.items()
    )
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def connect_to_majority(options: ConnectOptions, topology: Sequence[str]) -> Client:
    """Connect to a node that sees most of these nodes. After a network split, single nodes may form their own clusters.

    Args:
        options: Connection options; their endpoints are tried first, in order.
        topology: "host:port" of the nodes of the complete cluster, as chosen by `topology_of`; empty accepts any node.

    Raises:
        ConnectionFailed: No node sees enough of them.
    """
    others = [Endpoint.parse(node) for node in topology]
    answered = 0
    for endpoint in dict.fromkeys((*options.endpoints, *others)):
        if (client := _connect_to(endpoint, options)) is None:
            continue
        with ExitStack() as failed:
            failed.callback(client.close)
            if ClusterSnapshot(nodes=listed_by(client.nodes())).has_majority_of(topology):
                failed.pop_all()
                return client
            answered += 1
    raise ConnectionFailed(
        f"no Ignite node sees most of {', '.join(topology) or 'the cluster'} ({answered} answered, each with a part of "
        "the cluster). Restart the nodes that have lost the others: they do not come back by themselves"
    )


def connect_to_most(options: ConnectOptions) -> Client:
    """Connect to a cluster of which only the configured endpoints are known, avoiding nodes that were cut off from it.

    If the first node to answer sees at most half as many nodes as are configured, the other endpoints are tried, too.

    Raises:
        ConnectionFailed: No node answers.
    """
    with ExitStack() as opened:
        first = opened.enter_context(thin_client.connect(options))
        num_seen = {first: len(first.nodes())}
        for endpoint in options.endpoints if 2 * num_seen[first] <= len(options.endpoints) else ():
            if (other := _connect_to(endpoint, options)) is not None:
                opened.enter_context(other)
                num_seen[other] = len(other.nodes())
        best = max(num_seen, key=lambda client: num_seen[client])
        opened.pop_all()
    for client in num_seen.keys() - {best}:
        client.close()
    return best


def _connect_to(endpoint: Endpoint, options: ConnectOptions) -> Client | None:
    """Connect to one of several nodes without waiting long; return None if it cannot be used."""
    try:
        timeout_s = min(options.timeout_s, _CONNECT_S)
        return thin_client.connect(replace(options, endpoints=(endpoint,), timeout_s=timeout_s))
    except IgniteTfError:
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of asking one endpoint for the cluster's nodes.

    Attributes:
        node: Id of the node that answered.
        asks_password: Whether it requires a password and was not sent one.
    """

    endpoint: Endpoint
    node: uuid.UUID | None = None
    nodes: tuple[Node, ...] = ()
    error: str = ""
    asks_password: bool = False

    @property
    def is_there(self) -> bool:
        """Whether an Ignite node answers there, even with a refusal."""
        return bool(self.nodes) or self.asks_password

    def __str__(self) -> str:
        if self.asks_password:
            return (
                f"the node at {self.endpoint} is a cluster of its own (it asks for a password, which is "
                "sent only to configured addresses)"
            )
        if not self.nodes:
            return f"{self.endpoint} does not answer ({self.error.removeprefix(f'{self.endpoint}: ')})"
        num_others = len(self.nodes) - 1
        size = f"with {num_others} other{'s' * (num_others > 1)}" if num_others else "alone"
        return f"the node at {self.endpoint} is a cluster of its own ({size})"


def ask_all(options: ConnectOptions, endpoints: Iterable[Endpoint]) -> list[Answer]:
    """Ask all endpoints at once for the nodes that they see, without waiting long for any."""
    quick = replace(options, timeout_s=min(options.timeout_s, _ANSWER_S))
    asked = list(dict.fromkeys(endpoints))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max(len(asked), 1), "ask-nodes") as pool:
        return list(pool.map(partial(_ask, quick), asked))


def as_anybody(options: ConnectOptions) -> ConnectOptions:
    """Return options for untrusted endpoints: without a password, unless TLS proves who they are."""
    return options if options.tls is not None else replace(options, username=None, password=None)


def _ask(options: ConnectOptions, endpoint: Endpoint) -> Answer:
    try:
        with thin_client.connect(replace(options, endpoints=(endpoint,))) as client:
            return Answer(endpoint, client.router.control_node_id(), client.nodes())
    except AuthenticationError as error:
        return Answer(endpoint, error=str(error), asks_password=options.password is None)
    except IgniteTfError as error:
        return Answer(endpoint, error=str(error).removeprefix("no Ignite node answers. Tried "))


def listed_by(nodes: Iterable[Node]) -> tuple[frozenset[str], ...]:
    """Return the endpoints that each node lists, as "host:port"."""
    return tuple(frozenset(map(str, node.listed)) for node in nodes)


class TopologyWatch(Closing):
    """Queries the cluster ten times a second.

    Args:
        connect: Connects to the cluster; called again after the connection was lost, or if it shows too few nodes.
        cache: The cache whose owners are watched.
        topology: "host:port" of the nodes of the complete cluster.
    """

    def __init__(self, connect: Callable[[], Client], cache: str, topology: Sequence[str]) -> None:
        self._connect = connect
        self._cache = cache
        self._topology = topology
        self._client: Client | None = None
        self._since = time.monotonic()
        self._closing = threading.Event()
        self.snapshot = ClusterSnapshot(error="the cluster has not been asked yet")
        self._thread = threading.Thread(target=self._watch, name=f"topology-{cache}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._closing.wait(_POLL_S):
                self.snapshot = self._look()
                if not self.snapshot.has_majority_of(self._topology):
                    self._forget()  # another node may see more
        finally:
            self._forget()

    def _look(self) -> ClusterSnapshot:
        asked_at = time.monotonic()
        try:
            if self._client is None:
                self._client = self._connect()
            nodes = self._client.nodes()
            owners = fingerprint(self._client.cache(self._cache).partition_map())
        except IgniteTfError as error:
            self._forget()
            return ClusterSnapshot(asked_at, error=str(error))
        if owners != self.snapshot.owners:
            self._since = asked_at
        return ClusterSnapshot(asked_at, owners, asked_at - self._since, listed_by(nodes))

    def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        """Stop watching. A query in progress may continue for as long as the cluster takes to answer."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)
