"""Receives the changes of a cache from one node, in a background thread.

A node keeps unread changes of a client in its heap, without a bound. So the thread reads everything immediately and
keeps untaken changes here, up to a bound. A stream ends by itself when changes may be missing: the connection broke,
the buffer was full, or the cluster changed. The follower then begins another stream and scans the cache.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque

from ignite_tf_magic.client.channel import Channel
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import ConnectionLost, IgniteTfError, RemoteProtocolError, ServerError
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.connection import Notification
from ignite_tf_magic.protocol.continuous import RowEvent, continuous_query, parse_events
from ignite_tf_magic.protocol.ops import Operation

# A node sends changes in messages of this many, or of fewer after this time.
EVENTS_AT_ONCE = 64
_INTERVAL_MS = 50
# The node gets a heartbeat at this interval, which also reports the topology version. The stream ends after this many
# unanswered heartbeats.
_PULSE_S = 2.0
_MOST_UNANSWERED = 15


class FellBehind(IgniteTfError):
    """More changes came than the buffer holds."""


class ClusterChanged(IgniteTfError):
    """Nodes or caches came or went. Recreating a cache ends its continuous queries, and no node reports that."""


class EventStream(Closing):
    """A continuous query. Creating this object begins it.

    Args:
        channel: A channel to a node, not used by anything else. It is closed with the stream.
        cache: Id of the cache.
        room_bytes: Maximum bytes of untaken changes, exceeded by at most one message.

    Raises:
        ConnectionLost: The node went away.
        ServerError: The node has no such cache, or refuses.
    """

    def __init__(self, channel: Channel, cache: int, room_bytes: int) -> None:
        self._channel = channel
        self._room_bytes = room_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._end: IgniteTfError | None = None
        query = continuous_query(cache, EVENTS_AT_ONCE, _INTERVAL_MS)
        self._resource = channel.call(query, messages.parse_int64)
        self._topology = channel.topology
        self._unanswered = 0
        self._thread = threading.Thread(target=self._receive, name="follow", daemon=True)
        self._thread.start()

    @property
    def node_id(self) -> uuid.UUID:
        """The node that reports the changes."""
        return self._channel.node_id

    @property
    def end(self) -> IgniteTfError | None:
        """The reason why the stream has ended, else None. Earlier changes may still be taken."""
        return self._end

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended and all its changes were taken."""
        with self._changed:
            return self._end is not None and not self._waiting

    def close(self) -> None:
        """End the query and drop untaken changes."""
        self._channel.close()
        self._thread.join()
        with self._changed:
            self._waiting.clear()

    def take(self, within_s: float) -> list[RowEvent]:
        """Wait for changes. Return an empty list if none comes in time or the stream has ended.

        Raises:
            RemoteProtocolError: The node sent something that is not a change.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._end, within_s)
            if not self._waiting:
                return []
            payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
        return parse_events(memoryview(payload))

    def _receive(self) -> None:
        end: IgniteTfError = ConnectionLost(str(self._channel.endpoint), "the receiving thread failed")
        try:
            self._receive_all()
            end = ConnectionLost(str(self._channel.endpoint), "it does not answer")
        except IgniteTfError as error:
            end = error
        finally:  # always wake a thread that waits in `take`
            with self._changed:
                self._end = end
                self._changed.notify_all()
            self._channel.close()

    def _receive_all(self) -> None:
        pulse_at = time.monotonic() + _PULSE_S
        while self._unanswered <= _MOST_UNANSWERED:
            self._take_in_one(max(0.0, pulse_at - time.monotonic()))
            if time.monotonic() >= pulse_at:
                pulse_at = time.monotonic() + _PULSE_S
                self._unanswered += 1
                self._channel.submit(messages.heartbeat())

    def _take_in_one(self, within_s: float) -> None:
        event = self._channel.next_event(within_s)
        if event is None:
            return
        self._unanswered = 0
        if not isinstance(event, Notification):
            self._check_topology()
        elif event.resource == self._resource:
            self._keep(event)

    def _check_topology(self) -> None:
        if self._channel.topology != self._topology:
            raise ClusterChanged(f"the topology changed from {self._topology} to {self._channel.topology}")

    def _keep(self, notification: Notification) -> None:
        operation = Operation.QUERY_CONTINUOUS_EVENT_NOTIFICATION
        if notification.status:
            raise ServerError(notification.status, operation.name.lower(), notification.message)
        if notification.operation != operation:
            raise RemoteProtocolError(f"a continuous query sent operation {notification.operation}")
        with self._changed:
            if self._waiting and self._waiting_bytes + len(notification.payload) > self._room_bytes:
                raise FellBehind(f"{self._waiting_bytes} bytes of changes were waiting to be taken")
            self._waiting.append(bytes(notification.payload))
            self._waiting_bytes += len(notification.payload)
            self._changed.notify_all()
