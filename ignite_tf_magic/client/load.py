"""Bulk load: encodes columns as rows and sends each row to its primary node. Bounds the unconfirmed bytes."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.cache_scan import MAX_ATTEMPTS
from ignite_tf_magic.client.channel import Channel, payload_of
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.regions import RegionWatch
from ignite_tf_magic.client.router import Node, wait_for
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, IgniteTfError
from ignite_tf_magic.protocol import key_value
from ignite_tf_magic.protocol.affinity import partitions_of_hashes
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField, Request
from ignite_tf_magic.protocol.objects import BinaryType
from ignite_tf_magic.protocol.ops import JAVA_TYPES, TypeCode
from ignite_tf_magic.serialization.sql_text import folded_name

REQUEST_BYTES = 1024 * 1024
MAX_REQUEST_ROWS = 4096
REQUESTS_UNDER_WAY = 3
# Memory that a node needs for each row besides its bytes: the row's slot in a memory page and its key index entry.
STORED_ROW_BYTES = 64
_SETTLE_TIMEOUT_S = 40.0
_JAVA_TYPES: dict[int, str] = {
    **{int(code): name for code, name in JAVA_TYPES.items()},
    # The only objects that a load writes are dates; the servers' own metadata uses this name for them, too.
    TypeCode.BINARY_OBJECT: JAVA_TYPES[TypeCode.OPTIMIZED],
    TypeCode.STRING_ARRAY: "[Ljava.lang.String;",
    TypeCode.OBJECT_ARRAY: "java.lang.Object",
}

Progress = Callable[[int], None]


def table_config(name: str, encoder: RowEncoder, backups: int, *, key_name: str = "ID") -> CacheConfig:
    """Return the configuration of a cache for an encoder's rows, with SQL table `name` and a column per field.

    A key of one column becomes the column `key_name`, unless a field has that name. A key object becomes one column for
    each of its own fields.
    """
    fields = _columns(encoder.binary_type)
    if encoder.key_type is not None:
        key_java, key_field = encoder.key_type.name, None
        fields = [*_columns(encoder.key_type, is_key=True), *fields]
    else:
        key_java = java_type(encoder.key_code)
        key_field = None if any(field.name.upper() == key_name.upper() for field in fields) else key_name
        if key_field:
            fields.insert(0, table_field(key_field, key_java, is_key=True))
    entity = QueryEntity(folded_name(name), key_java, encoder.binary_type.name, tuple(fields), key_field)
    return CacheConfig(name, backups=backups, sql_schema="PUBLIC", query_entities=(entity,))


def _columns(binary_type: BinaryType, *, is_key: bool = False) -> list[QueryField]:
    return [
        table_field(field, java_type(code), is_key=is_key)
        for field, (code, _) in binary_type.fields.items()
        if code in _JAVA_TYPES
    ]


def table_field(name: str, java: str, *, is_key: bool = False) -> QueryField:
    """Return a field of a new table. Its column has the field's name, folded as in a SQL statement."""
    return QueryField(name, java, is_key, folded_name(name))


def java_type(code: int) -> str:
    """Return the Java type that SQL tables use for a field that a load writes."""
    return _JAVA_TYPES.get(code, "java.lang.Object")


def put_rows(
    cache: Cache, encoder: RowEncoder, progress: Progress | None = None, watch: RegionWatch | None = None
) -> int:
    """Write all rows of an encoder. They replace rows with the same keys. Blocks until all are written.

    Up to 3 requests of 1 MiB are pending at each node. When a node is lost, its unconfirmed rows are sent to the new
    owners.

    Args:
        cache: The cache to write to.
        encoder: The rows.
        progress: Called with the number of rows just written; from several threads, one at a time.
        watch: Checks that nodes have room before bytes are sent.

    Returns:
        The number of rows written.

    Raises:
        ServerError: A node refused rows.
        RegionFull: A node has no room for more; some rows are written.
        IgniteTfError: Several attempts in a row failed.
    """
    for binary_type in (encoder.binary_type, encoder.key_type):
        if binary_type is not None:
            cache.client.types.put(binary_type)
    loader = _RowSender(cache, encoder, progress, watch)
    pending: NDArray[np.intp] = np.arange(len(encoder))
    attempts = 0
    while len(pending):
        left = loader.send(pending)
        attempts = attempts + 1 if len(left) == len(pending) else 0
        if attempts > MAX_ATTEMPTS:
            raise IgniteTfError(
                f"writing to cache {cache.name!r} failed {attempts} times in a row, {len(left)} rows are left: "
                f"{loader.failure}"
            )
        pending = left
    return len(encoder)


def check_room(client: Client, encoder: RowEncoder, num_rows: int, backups: int) -> RegionWatch:
    """Refuse rows that certainly do not fit, before any is written. Return the watch to use while writing.

    Args:
        client: A client of the cluster.
        encoder: Encoder of some of the rows.
        num_rows: Number of all rows.
        backups: Copies of each row besides the primary.

    Raises:
        RegionFull: A node has no room for its part of the rows.
    """
    num_nodes = max(len(client.nodes()), 1)
    watch = region_watch(client)
    copies = min(1 + backups, num_nodes)
    least_row_bytes = encoder.row_bytes if encoder.has_fixed_rows else 0
    watch.check(num_rows * (least_row_bytes + STORED_ROW_BYTES // 2) * copies // num_nodes)
    return watch


def region_watch(client: Client) -> RegionWatch:
    """Return a watch that refuses to fill the nodes' data regions."""
    # Metrics do not show pending requests yet; a node gets its own and copies of others'.
    return RegionWatch(client, 2 * REQUESTS_UNDER_WAY * REQUEST_BYTES)


@dataclass(slots=True)
class _RowBlock:
    """The rows of one request."""

    index: NDArray[np.intp]
    request: Request


class _RowSender:
    """Sends rows to their owners, one thread per node."""

    def __init__(
        self, cache: Cache, encoder: RowEncoder, progress: Progress | None, watch: RegionWatch | None
    ) -> None:
        self._cache = cache
        self._encoder = encoder
        self._progress = progress
        self._watch = watch
        self._lock = threading.Lock()
        self._hashes = encoder.key_hashes()
        self._rows_per_request = max(1, min(MAX_REQUEST_ROWS, REQUEST_BYTES // encoder.row_bytes))
        self.failure: IgniteTfError | None = None

    def send(self, pending: NDArray[np.intp]) -> NDArray[np.intp]:
        """Send rows. Return those that no node confirmed."""
        groups = wait_for(lambda: self._route(pending), _SETTLE_TIMEOUT_S)
        if groups is None:
            raise IgniteTfError(
                f"no reachable owners of cache {self._cache.name!r} for {_SETTLE_TIMEOUT_S:g} s; the last failure: "
                f"{self.failure}"
            )
        with ThreadPoolExecutor(len(groups), "ignite-load") as pool:
            left = list(pool.map(self._send_to, *zip(*groups, strict=True)))
        return np.sort(np.concatenate(left))

    def _route(self, pending: NDArray[np.intp]) -> list[tuple[Node, NDArray[np.intp]]] | None:
        """Group rows by the node of their primary copy. Return None while the cluster is changing.

        After a failure, return None also while an owner does not answer: a killed node is listed for a moment.
        """
        try:
            partition_map = self._cache.partition_map()
            nodes = {node.node_id: node for node in self._cache.client.nodes()}
        except (ConnectionLost, ConnectionFailed) as error:
            self.failure = error
            return None
        if not partition_map.partitioned:
            first = next(iter(nodes.values()))
            return [(first, pending)] if self._answer({first.node_id}) else None
        owner_of = partition_map.primary_of()
        owners = set(owner_of.values())
        if not owners or not owners <= nodes.keys() or not self._answer(owners):
            return None
        numbers = {node: number for number, node in enumerate(nodes)}
        table = np.array([numbers[owner_of[p]] for p in range(partition_map.num_partitions)])
        numbers_of_rows = table[partitions_of_hashes(self._hashes[pending], partition_map.num_partitions)]
        groups = ((node, pending[numbers_of_rows == number]) for number, node in enumerate(nodes.values()))
        return [(node, index) for node, index in groups if len(index)]

    def _answer(self, owners: set[uuid.UUID]) -> bool:
        """Return whether nodes answer. They are asked only after a failure."""
        return self.failure is None or self._cache.client.router.all_answer(owners)

    def _send_to(self, node: Node, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """Send rows to one node. Return those that it did not confirm."""
        under_way: dict[int, _RowBlock] = {}
        blocks = self._blocks(index)
        unsent: deque[NDArray[np.intp]] = deque()
        try:
            with self._cache.client.router.open_to(node) as channel:
                for block in blocks:
                    unsent.append(block.index)
                    under_way[channel.submit(block.request)] = block
                    channel.flush()
                    unsent.pop()
                    if len(under_way) >= REQUESTS_UNDER_WAY:
                        self._confirm(channel, under_way)
                while under_way:
                    self._confirm(channel, under_way)
        except (ConnectionLost, ConnectionFailed) as error:
            self.failure = error
        rest = [block.index for block in under_way.values()]
        return np.concatenate([np.empty(0, np.intp), *rest, *unsent, *(block.index for block in blocks)])

    def _confirm(self, channel: Channel, under_way: dict[int, _RowBlock]) -> None:
        answer = channel.next_answer()
        block = under_way[answer.request_id]
        payload_of(answer, block.request)
        del under_way[answer.request_id]
        if self._progress:
            with self._lock:
                self._progress(len(block.index))

    def _blocks(self, index: NDArray[np.intp]) -> Iterator[_RowBlock]:
        for first in range(0, len(index), self._rows_per_request):
            part = index[first : first + self._rows_per_request]
            rows = self._encoder.encode(part)
            if self._watch:
                self._watch.claim(len(rows) + STORED_ROW_BYTES * len(part))
            yield _RowBlock(part, key_value.put_encoded(self._cache.cache_id, len(part), rows))
