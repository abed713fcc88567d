"""Connects to cluster nodes: endpoints, the control channel, and topology changes."""

from __future__ import annotations

import ipaddress
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ignite_tf_magic.client.channel import Channel, open_channel
from ignite_tf_magic.client.transport import tls_context
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.affinity import TopologyVersion
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

T = TypeVar("T")
_NOT_SENT = "it is an address of this machine, but no configured address is: the password was not sent to it"


@dataclass(frozen=True, slots=True)
class Node:
    """A server node.

    Attributes:
        endpoints: Endpoints at which the node may be reached, best guess first.
        dialled: The first of these, if the node answered there but does not list that endpoint itself.
    """

    node_id: uuid.UUID
    endpoints: tuple[Endpoint, ...]
    dialled: Endpoint | None = None

    @property
    def listed(self) -> tuple[Endpoint, ...]:
        """The endpoints that the node itself lists; the same for all clients."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint != self.dialled)


class Router:
    """Opens channels to a given node or to any node. Thread-safe. Close it.

    It keeps one control channel. When that breaks, the router connects to the next node that answers.
    """

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._tls = tls_context(options.tls) if options.tls else None
        self._lock = threading.RLock()
        self._control: Channel | None = None
        self._nodes: tuple[Node, ...] = ()
        self._topology_version = -1
        self._known_good: dict[uuid.UUID, Endpoint] = {}
        self._idle: dict[uuid.UUID, Channel] = {}
        self._is_closed = False

    @property
    def options(self) -> ConnectOptions:
        """The connection options passed to the router."""
        return self._options

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The configured endpoints, in the order in which they are tried."""
        return self._options.endpoints

    def close(self) -> None:
        """Close the control channel and idle ones. The caller of `open_to` closes the channel that it got."""
        with self._lock:
            self._is_closed = True
            for channel in (self._control, *self._idle.values()):
                if channel:
                    channel.close()
            self._control = None
            self._idle.clear()

    def call(self, request: Request, parse: Callable[[memoryview], T], *, repeat: bool = True) -> T:
        """Send a request to any node.

        Args:
            request: The request.
            parse: Reads the answer.
            repeat: Repeat the request, possibly to another node, if the connection breaks. Only for requests that may
                be carried out twice.

        Raises:
            ConnectionFailed: No node answers; the message names all that were tried.
            ServerError: The node refused the request.
        """
        channel = self._control_channel()
        try:
            return channel.call(request, parse)
        except ConnectionLost:
            self._drop(channel)
            if not repeat:
                raise
        return self._control_channel().call(request, parse)

    def nodes(self) -> tuple[Node, ...]:
        """Ask the cluster for its server nodes."""
        topology = self.call(messages.node_endpoints(), messages.parse_topology)
        with self._lock:
            self._topology_version = topology.version
            self._nodes = tuple(self._node(entry) for entry in topology.nodes)
            return self._nodes

    def heartbeat(self) -> TopologyVersion | None:
        """Exchange a heartbeat on the control channel. Return the newest topology version reported there."""
        self.call(messages.heartbeat(), messages.parse_nothing)
        return self._control_channel().topology

    def control_node_id(self) -> uuid.UUID:
        """Return the node of the control channel: the first candidate endpoint that answered."""
        return self._control_channel().node_id

    @property
    def known_nodes(self) -> tuple[Node, ...]:
        """The server nodes at the time of the last `nodes` call."""
        return self._nodes

    def _node(self, entry: messages.NodeEndpoints) -> Node:
        endpoints = [Endpoint(address, entry.port) for address in entry.addresses]
        good = self._known_good.get(entry.node_id)
        ordered = ([good] if good else []) + [e for e in endpoints if e != good]
        dialled = None if good in endpoints else good
        return Node(entry.node_id, tuple(dict.fromkeys(ordered)), dialled)

    def open_to(self, node: Node) -> Channel:
        """Open a channel to one node, or return an idle one. The caller closes it or passes it to `give_back`.

        A node lists every address that it has. Some of these lead elsewhere from here, such as a container's address or
        another machine's loopback. The node id in the handshake shows whether the right node answered.

        Raises:
            ConnectionFailed: None of its endpoints leads to the node from here.
        """
        with self._lock:
            idle = self._idle.pop(node.node_id, None)
        if idle is not None:
            if idle.is_fresh():
                return idle
            idle.close()
        reasons = []
        for endpoint in node.endpoints:
            if self._is_of_another_machine(endpoint):
                reasons.append(f"{endpoint}: {_NOT_SENT}")
                continue
            try:
                channel = open_channel(endpoint, self._options, self._tls)
            except ConnectionFailed as error:
                reasons.append(str(error))
                continue
            if channel.node_id == node.node_id:
                self._known_good[node.node_id] = endpoint
                return channel
            channel.close()
            reasons.append(f"{endpoint}: another node answers there")
        raise ConnectionFailed(f"cannot reach Ignite node {node.node_id}: " + "; ".join(reasons))

    def all_answer(self, node_ids: Iterable[uuid.UUID]) -> bool:
        """Return whether every node accepts connections. The cluster lists a killed node for a moment."""
        nodes = {node.node_id: node for node in self._nodes}
        for node_id in node_ids:
            try:
                self.open_to(nodes[node_id]).close()
            except (ConnectionFailed, ConnectionLost, KeyError):
                return False
        return True

    @contextmanager
    def borrowed(self, node: Node) -> Iterator[Channel]:
        """Open a channel for requests that are all answered within the `with` block. Keep it unless the block raises.

        Raises:
            ConnectionFailed: As `open_to`.
        """
        channel = self.open_to(node)
        try:
            yield channel
        except BaseException:
            channel.close()
            raise
        self.give_back(channel)

    def give_back(self, channel: Channel) -> None:
        """Keep a channel without pending requests for the next `open_to`. One channel per node is kept."""
        with self._lock:
            surplus: Channel | None = channel  # nothing else would close it
            if not self._is_closed:
                surplus = self._idle.pop(channel.node_id, None)
                self._idle[channel.node_id] = channel
        if surplus:
            surplus.close()

    def _control_channel(self) -> Channel:
        with self._lock:
            if self._is_closed:
                raise ConnectionFailed("this Ignite client has been closed; connect again")
            if self._control is None:
                self._control = self._connect_any()
            return self._control

    def _drop(self, channel: Channel) -> None:
        with self._lock:
            channel.close()
            if self._control is channel:
                self._control = None

    def _is_of_another_machine(self, endpoint: Endpoint) -> bool:
        """Return whether this is a node's own loopback address, where a local listener would get the password."""
        given = self._options
        if given.password is None or (given.tls is not None and given.tls.check_hostname):
            return False
        return _is_loopback(endpoint.host) and not any(_is_loopback(each.host) for each in given.endpoints)

    def _candidates(self) -> Iterable[Endpoint]:
        listed = (endpoint for node in self._nodes for endpoint in node.endpoints)
        learnt = (endpoint for endpoint in listed if not self._is_of_another_machine(endpoint))
        return dict.fromkeys((*self._options.endpoints, *self._known_good.values(), *learnt))

    def _connect_any(self) -> Channel:
        reasons: list[str] = []
        for endpoint in self._candidates():
            try:
                channel = open_channel(endpoint, self._options, self._tls)
            except ConnectionFailed as error:
                reasons.append(str(error))
                continue
            self._known_good[channel.node_id] = endpoint
            return channel
        raise ConnectionFailed("no Ignite node answers. Tried " + "; ".join(reasons))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def wait_for(
    condition: Callable[[], T | None], timeout_s: float, pauses_s: Sequence[float] = (0.05, 0.1, 0.2, 0.5)
) -> T | None:
    """Poll with growing pauses until the condition returns a value. Return None after the timeout."""
    deadline = time.monotonic() + timeout_s
    attempt = 0
    while (found := condition()) is None and time.monotonic() < deadline:
        time.sleep(pauses_s[min(attempt, len(pauses_s) - 1)])
        attempt += 1
    return found
