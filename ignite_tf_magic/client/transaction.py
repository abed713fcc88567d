"""Transactions: several rows are written in one step, or none is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from ignite_tf_magic.client.channel import Channel
from ignite_tf_magic.client.router import Node, Router
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, LocalProtocolError, ServerError
from ignite_tf_magic.protocol import key_value, messages
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import Concurrency, Isolation

T = TypeVar("T")


class Transaction:
    """A running transaction on its own connection. One thread.

    As a context manager it commits at the end of the block, and rolls back if the block raises.
    """

    def __init__(self, channel: Channel, number: int, let_go: Callable[[Channel], None]) -> None:
        self._channel: Channel | None = channel
        self._number = number
        self._let_go = let_go

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._channel:
            self.commit()
        else:
            self.roll_back()

    def call(self, request: Request, parse: Callable[[memoryview], T]) -> T:
        """Carry out a request of `protocol.key_value` in this transaction.

        Raises:
            ServerError: The node refused the request, for example because the cache is not TRANSACTIONAL.
            ConnectionLost: The node went away; nothing was written.
            LocalProtocolError: The transaction has ended.
        """
        if self._channel is None:
            raise LocalProtocolError("this transaction has ended")
        return self._channel.call(key_value.within(request, self._number), parse)

    def commit(self) -> None:
        """Write all changes of the transaction.

        Raises:
            ServerError: Another writer was first, or the transaction timed out; nothing was written.
            ConnectionLost: The changes may or may not have been written.
        """
        self._end(commit=True)

    def roll_back(self) -> None:
        """Discard all changes. Does nothing if the transaction has ended."""
        if self._channel is None:
            return
        try:
            self._end(commit=False)
        except (ConnectionLost, ServerError):
            return  # the node has rolled it back already

    def _end(self, *, commit: bool) -> None:
        channel, self._channel = self._channel, None
        if channel is None:
            raise LocalProtocolError("this transaction has ended")
        try:
            channel.call(key_value.end_transaction(self._number, commit=commit), messages.parse_nothing)
        except BaseException:
            channel.close()
            raise
        self._let_go(channel)


def begin(router: Router, concurrency: Concurrency, isolation: Isolation, timeout_s: float) -> Transaction:
    """Begin a transaction at the node of the control channel; see `Client.transaction`.

    Raises:
        ConnectionFailed: No node answers.
    """
    here = router.control_node_id()
    node = _node(router.known_nodes, here) or _node(router.nodes(), here)
    if node is None:
        raise ConnectionFailed(f"Ignite node {here} has left the cluster")
    channel = router.open_to(node)
    request = key_value.start_transaction(concurrency, isolation, int(timeout_s * 1000))
    try:
        number = channel.call(request, key_value.parse_transaction)
    except BaseException:
        channel.close()
        raise
    return Transaction(channel, number, router.give_back)


def _node(nodes: Sequence[Node], node_id: uuid.UUID) -> Node | None:
    return next((node for node in nodes if node.node_id == node_id), None)
