"""Bulk load: columns to rows, each row sent to the node of its primary copy, bytes under way bounded."""

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
# What a node keeps of each row beside its bytes: its place in a page, and its entry in the index of keys.
STORED_ROW_BYTES = 64
_SETTLE_TIMEOUT_S = 40.0
_JAVA_TYPES: dict[int, str] = {
    **{int(code): name for code, name in JAVA_TYPES.items()},
    # The only objects that a load writes are dates; the servers' own metadata calls them so, too.
    TypeCode.BINARY_OBJECT: JAVA_TYPES[TypeCode.OPTIMIZED],
    TypeCode.STRING_ARRAY: "[Ljava.lang.String;",
    TypeCode.OBJECT_ARRAY: "java.lang.Object",
}

Progress = Callable[[int], None]


def table_config(name: str, encoder: RowEncoder, backups: int, *, key_name: str = "ID") -> CacheConfig:
    """Describe a cache for an encoder's rows that SQL can browse: table `name`, a column per field.

    A key of one column is the column `key_name`, unless a field has that name; one that is an object gives a column for
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
    """Describe a field of a new table, whose column statements find under the field's name as it is written there."""
    return QueryField(name, java, is_key, folded_name(name))


def java_type(code: int) -> str:
    """Return what SQL's tables call the type of a field that a load writes."""
    return _JAVA_TYPES.get(code, "java.lang.Object")


def put_rows(
    cache: Cache, encoder: RowEncoder, progress: Progress | None = None, watch: RegionWatch | None = None
) -> int:
    """Write all rows of an encoder; rows with the same keys are replaced. Blocks until all are written.

    Up to 3 requests of 1 MiB are under way to each node. When a node is lost, what it had not confirmed
    is sent to the new owners.

    Args:
        cache: Where to.
        encoder: The rows.
        progress: Told how many more rows were written; called from several threads, one at a time.
        watch: Asked before bytes are sent.

    Returns:
        The number of rows written.

    Raises:
        ServerError: A node refused rows.
        RegionFull: A node has no room for more; some rows are written.
        IgniteTfError: Writing failed again and again.
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
    """Refuse rows for which there is no room for sure, before any is written; gives what watches while they are.

    Args:
        client: Of the cluster.
        encoder: Of some of them.
        num_rows: How many they are.
        backups: Copies of each beside the first.

    Raises:
        RegionFull: A node has no room for its part of them.
    """
    num_nodes = max(len(client.nodes()), 1)
    watch = region_watch(client)
    copies = min(1 + backups, num_nodes)
    least_row_bytes = encoder.row_bytes if encoder.has_fixed_rows else 0
    watch.check(num_rows * (least_row_bytes + STORED_ROW_BYTES // 2) * copies // num_nodes)
    return watch


def region_watch(client: Client) -> RegionWatch:
    """Return what refuses to fill the nodes' data regions."""
    # Requests under way show in no metric yet; a node gets its own and copies of others'.
    return RegionWatch(client, 2 * REQUESTS_UNDER_WAY * REQUEST_BYTES)


@dataclass(slots=True)
class _RowBlock:
    """Rows of one request."""

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
        """Send rows; gives those that no node confirmed."""
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
        """Group rows by the node of their primary copy; None while the cluster is changing.

        After a failure also while an owner does not answer: a node that was killed is listed for a moment.
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
        """Whether nodes answer, of which one has failed; before that they are believed to."""
        return self.failure is None or self._cache.client.router.all_answer(owners)

    def _send_to(self, node: Node, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """Send rows to one node; gives those it did not confirm."""
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
