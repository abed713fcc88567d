"""The nodes of a cluster and the way to each: endpoints, control channels, topology changes."""

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
_NOT_SENT = "it means this machine to us, which no configured address does: it was not sent the password"


@dataclass(frozen=True, slots=True)
class Node:
    """A server node.

    Attributes:
        endpoints: Under which it may be reached, best guess first.
        dialled: The first of these, where it has answered us there and does not list it itself.
    """

    node_id: uuid.UUID
    endpoints: tuple[Endpoint, ...]
    dialled: Endpoint | None = None

    @property
    def listed(self) -> tuple[Endpoint, ...]:
        """What the node says of itself: the same for all who ask."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint != self.dialled)


class Router:
    """Finds a way to any node, or to one node. Thread-safe. Close it.

    One control channel is kept; when it breaks, the next node that answers takes its place.
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
        """How to connect, as it was given."""
        return self._options

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where to knock first, as the options say."""
        return self._options.endpoints

    def close(self) -> None:
        """Close the control channel and idle ones. Channels given by `open_to` belong to their openers."""
        with self._lock:
            self._is_closed = True
            for channel in (self._control, *self._idle.values()):
                if channel:
                    channel.close()
            self._control = None
            self._idle.clear()

    def call(self, request: Request, parse: Callable[[memoryview], T], *, repeat: bool = True) -> T:
        """Ask any node.

        Args:
            request: What to ask.
            parse: Reads the answer.
            repeat: Ask another node when the connection breaks; only for requests that may be
                carried out twice.

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
        """Ask for the server nodes of the cluster."""
        topology = self.call(messages.node_endpoints(), messages.parse_topology)
        with self._lock:
            self._topology_version = topology.version
            self._nodes = tuple(self._node(entry) for entry in topology.nodes)
            return self._nodes

    def heartbeat(self) -> TopologyVersion | None:
        """Exchange a heartbeat on the control channel; gives the newest topology version told of."""
        self.call(messages.heartbeat(), messages.parse_nothing)
        return self._control_channel().topology

    def control_node_id(self) -> uuid.UUID:
        """Tell which node the control channel leads to: the first endpoint given that answered."""
        return self._control_channel().node_id

    @property
    def known_nodes(self) -> tuple[Node, ...]:
        """The server nodes as they were when they were last asked for."""
        return self._nodes

    def _node(self, entry: messages.NodeEndpoints) -> Node:
        endpoints = [Endpoint(address, entry.port) for address in entry.addresses]
        good = self._known_good.get(entry.node_id)
        ordered = ([good] if good else []) + [e for e in endpoints if e != good]
        dialled = None if good in endpoints else good
        return Node(entry.node_id, tuple(dict.fromkeys(ordered)), dialled)

    def open_to(self, node: Node) -> Channel:
        """Open a channel to one node, or give an idle one; the caller closes it or gives it back.

        A node lists every address it has, some of which lead elsewhere from here (a container's, another
        machine's loopback): the id in the handshake tells whether the right one answered.

        Raises:
            ConnectionFailed: None of its endpoints leads to it from here.
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
        raise ConnectionFailed(f"no way to Ignite node {node.node_id}: " + "; ".join(reasons))

    def all_answer(self, node_ids: Iterable[uuid.UUID]) -> bool:
        """Whether each of these nodes accepts connections: one that was killed is listed for a moment."""
        nodes = {node.node_id: node for node in self._nodes}
        for node_id in node_ids:
            try:
                self.open_to(nodes[node_id]).close()
            except (ConnectionFailed, ConnectionLost, KeyError):
                return False
        return True

    @contextmanager
    def borrowed(self, node: Node) -> Iterator[Channel]:
        """Open a channel to one node for requests that are all answered within the `with`; kept unless that fails.

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
        """Keep a channel without requests under way for the next `open_to`; one for each node is kept."""
        with self._lock:
            surplus: Channel | None = channel  # nobody would close it any more
            if not self._is_closed:
                surplus = self._idle.pop(channel.node_id, None)
                self._idle[channel.node_id] = channel
        if surplus:
            surplus.close()

    def _control_channel(self) -> Channel:
        with self._lock:
            if self._is_closed:
                raise ConnectionFailed("this client of Ignite has been closed; connect anew")
            if self._control is None:
                self._control = self._connect_any()
            return self._control

    def _drop(self, channel: Channel) -> None:
        with self._lock:
            channel.close()
            if self._control is channel:
                self._control = None

    def _is_of_another_machine(self, endpoint: Endpoint) -> bool:
        """Tell whether a node lists its own loopback, and a password would go to whoever listens there here."""
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
    """Poll until a condition gives something, with growing pauses; None after the time is over."""
    deadline = time.monotonic() + timeout_s
    attempt = 0
    while (found := condition()) is None and time.monotonic() < deadline:
        time.sleep(pauses_s[min(attempt, len(pauses_s) - 1)])
        attempt += 1
    return found
