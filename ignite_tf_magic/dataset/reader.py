"""Partitions as a stream of column chunks: one reading thread per owner, chunks in a fixed order.

Each owner's partitions are read in the order given; chunks of a fixed number of rows are taken from the
owners in turn. The sequence of rows therefore depends on the data, the owners and the order asked for,
not on timing and not on page sizes.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ignite_tf_magic.client.cache_scan import Baseline, CacheScan
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.dataset.kept_client import KeptClient
from ignite_tf_magic.dataset.options import ReadOptions
from ignite_tf_magic.dataset.pool import BufferPool
from ignite_tf_magic.errors import ConfigError, EmptyCache, PartitionsLost, format_ranges
from ignite_tf_magic.protocol.columns import ColumnChunk, PageDecoder, UnknownSchema
from ignite_tf_magic.protocol.layout import LayoutFinder, Leaf, Node, ObjectNode, RowLayout, declared_layout
from ignite_tf_magic.protocol.page_run import PageRun

CHUNK_BYTES = 4 * 1024 * 1024
MAX_CHUNK_ROWS = 32 * 1024
QUEUED_CHUNKS = 2
SAMPLED_PARTITIONS = 24
SAMPLED_ROWS = 256
_VARIABLE_ROW_BYTES = 256
_RECOUNT_TIMEOUT_S = 2.0

Order = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Source:
    """A cache ready to be read, as it was when it was opened.

    Attributes:
        partitions: What to read, ascending.
        layout: What the rows look like; None when there are none to tell it.
        sizes: Learns with every reading.
        pool: Memory for chunks, kept from one reading to the next.
        clients: Connections, kept likewise.
    """

    cache: str
    partitions: tuple[int, ...]
    layout: RowLayout | None
    baseline: Baseline
    sizes: PageSizes
    pool: BufferPool
    clients: KeptClient

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk: about 4 MiB of columns, a power of two.

        Batches of a power of two then lie within one chunk, and tf.data passes them on without copying.
        An eighth more is allowed, so that four rows of 1 MiB and their keys are a chunk.
        """
        leaves = self.layout.leaves() if self.layout else ()
        width = sum(_row_bytes(leaf) for leaf in leaves)
        fitting = max(1, min(MAX_CHUNK_ROWS, CHUNK_BYTES * 9 // 8 // max(width, 1)))
        return 1 << (fitting.bit_length() - 1)


def _row_bytes(leaf: Leaf) -> int:
    if not leaf.is_fixed:
        return _VARIABLE_ROW_BYTES
    return leaf.dtype.itemsize * (leaf.row_shape[0] if leaf.row_shape else 1)


def open_source(options: ReadOptions) -> Source:
    """Connect, find out who owns the partitions, and look at some rows.

    Raises:
        CacheNotFound: No such cache; the error lists the near names.
        SchemaError: The rows have no common layout.
        ConnectionFailed, AuthenticationError: No way to the cluster.
    """
    pool = BufferPool()
    clients = KeptClient(options.connect, on_idle=pool.clear)
    client = clients.take()
    try:
        source = _look_at(options, client, clients, pool)
    except BaseException:
        client.close()
        raise
    clients.give_back(client)
    return source


def _look_at(options: ReadOptions, client: Client, clients: KeptClient, pool: BufferPool) -> Source:
    cache = client.cache(options.cache)
    baseline = cache.baseline()
    partitions = _choose(options, client, baseline)
    known = options.assignment.stats if options.assignment else None
    sizes = PageSizes(options.page_rows, known)
    finder = LayoutFinder(client.find_type, options.fields, options.fill, options.variable)
    _sample(cache, partitions, baseline, finder)
    layout = finder.layout() if finder.num_rows else _declared(cache)
    return Source(options.cache, partitions, layout, baseline, sizes, pool, clients)


def _choose(options: ReadOptions, client: Client, baseline: Baseline) -> tuple[int, ...]:
    chosen = sorted(baseline.owners) if options.partitions is None else list(options.partitions)
    unknown = [partition for partition in chosen if partition not in baseline.owners]
    if unknown:
        raise ConfigError(
            f"cache {options.cache!r} has no partition {format_ranges(unknown)}; "
            f"it has {format_ranges(sorted(baseline.owners))}"
        )
    if options.local:
        near = client.router.control_node_id()
        chosen = [partition for partition in chosen if baseline.owners[partition] == near]
    return tuple(chosen)


def _declared(cache: Cache) -> RowLayout | None:
    entities = cache.config().query_entities
    return declared_layout(entities[0]) if len(entities) == 1 else None


def _sample(cache: Cache, partitions: Sequence[int], baseline: Baseline, finder: LayoutFinder) -> None:
    """Look at the first rows of partitions spread over the owners, until enough rows were seen.

    Rows of another cache's partitions serve when this worker's own are empty.
    """
    step = max(1, len(partitions) // SAMPLED_PARTITIONS)
    ordered = dict.fromkeys((*partitions[::step], *partitions, *sorted(baseline.owners)))
    scan = cache.scan(ordered, PageSizes(), baseline)
    try:
        num_partitions = 0
        last = None
        for scanned in scan.pages():
            finder.add(scanned.page.rows, scanned.page.num_rows)
            num_partitions += scanned.partition != last
            last = scanned.partition
            if finder.num_rows >= SAMPLED_ROWS or num_partitions >= SAMPLED_PARTITIONS:
                return
    finally:
        scan.close()


class ChunkReader(Closing):
    """One reading of a source. Iterate once; `close` ends the threads, also in the middle."""

    def __init__(self, source: Source, order: Order | None = None) -> None:
        if source.layout is None:
            raise EmptyCache(f"cache {source.cache!r} holds no rows to tell what they look like")
        self._source = source
        self._layout = source.layout
        self._client = source.clients.take()
        try:
            _check_baseline(source, self._client)
            self._owners = self._start_owners(order or (lambda partitions: partitions))
        except BaseException:
            self._client.close()
            raise

    def close(self) -> None:
        """End the reading threads. The connections stay open for a while, for the next reading."""
        for owner in self._owners:
            owner.stop()
        for owner in self._owners:
            owner.join()
        self._source.clients.give_back(self._client)

    def chunks(self) -> Iterator[ColumnChunk]:
        """Yield the chunks, from the owners in turn.

        Raises:
            PartitionsLost, SchemaError, ConnectionFailed: As `CacheScan.pages`.
        """
        waiting = deque(self._owners)
        while waiting:
            owner = waiting.popleft()
            chunk = owner.next_chunk()
            if chunk is not None:
                waiting.append(owner)
                yield chunk

    def _start_owners(self, order: Order) -> list[_OwnerThread]:
        cache = Cache(self._client, self._source.cache)
        groups: dict[uuid.UUID, list[int]] = {}
        current = cache.partition_map()
        owners = current.primary_of() if current.partitioned else self._source.baseline.owners
        for partition in order(self._source.partitions):
            groups.setdefault(owners[partition], []).append(partition)
        baseline = self._source.baseline.at(
            owners, (node.node_id for node in self._client.router.known_nodes)
        )
        threads = []
        for number, node in enumerate(sorted(groups)):
            scan = cache.scan(groups[node], self._source.sizes, baseline)
            threads.append(_OwnerThread(self._client, scan, self._source, self._layout, number))
        return threads


def _check_baseline(source: Source, client: Client) -> None:
    """Refuse to read fewer rows than there were because nodes have left since the source was opened."""
    alive = (node.node_id for node in client.router.known_nodes)
    lost = source.baseline.lost(alive, source.partitions)
    if not lost:
        return
    cache = client.cache(source.cache)

    def is_complete() -> bool | None:
        return cache.size() >= source.baseline.size or None

    # For half a second after a node was killed, the others may count their own rows only.
    if wait_for(is_complete, _RECOUNT_TIMEOUT_S) is None:
        raise PartitionsLost(
            source.cache, lost, "their nodes left the cluster since the dataset was made; load the data again"
        )


class _OwnerThread:
    """Reads one owner's partitions and decodes them into chunks, a few chunks ahead."""

    def __init__(
        self, client: Client, scan: CacheScan, source: Source, layout: RowLayout, number: int
    ) -> None:
        self._client = client
        self._scan = scan
        self._layout = layout
        self._chunk_rows = source.chunk_rows
        self._pool = source.pool
        self._decoder = PageDecoder(self._layout)
        self._chunks: queue.Queue[ColumnChunk | BaseException | None] = queue.Queue(QUEUED_CHUNKS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ignite-read-{number}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end, wherever it waits."""
        self._closing.set()
        self._scan.close()
        with suppress(queue.Empty):
            while True:
                self._chunks.get_nowait()

    def join(self) -> None:
        """Wait until a stopped thread has ended."""
        self._thread.join()

    def next_chunk(self) -> ColumnChunk | None:
        """Wait for a chunk; None when all were given. Raises what ended the thread."""
        item = self._chunks.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _run(self) -> None:
        try:
            self._read()
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
            self._put(error)

    def _put(self, item: ColumnChunk | BaseException | None) -> None:
        while not self._closing.is_set():
            try:
                self._chunks.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def _read(self) -> None:
        chunk = self._new_chunk()
        for scanned in self._scan.runs():
            while scanned.run.num_rows:
                self._decode(scanned.run, chunk)
                if not chunk.free_rows:
                    self._put(chunk)
                    chunk = self._new_chunk()
            if self._closing.is_set():
                return
        if chunk.num_rows:
            self._put(chunk)

    def _new_chunk(self) -> ColumnChunk:
        return ColumnChunk(self._layout, self._chunk_rows, self._pool.allocate)

    def _decode(self, run: PageRun, chunk: ColumnChunk) -> None:
        try:
            self._decoder.decode(run, chunk)
        except UnknownSchema:
            self._layout = _with_current_types(self._layout, self._client)
            self._decoder = PageDecoder(self._layout)
            self._decoder.decode(run, chunk)


def _with_current_types(layout: RowLayout, client: Client) -> RowLayout:
    """Learn the schemas that were added to the layout's types since it was found."""

    def renew(node: Node) -> Node:
        if isinstance(node, Leaf):
            return node
        current = client.find_type(node.binary_type.type_id, refresh=True)
        fields = tuple((field_id, renew(child)) for field_id, child in node.fields)
        return ObjectNode(node.path, current or node.binary_type, fields)

    return RowLayout(renew(layout.key), renew(layout.value))
