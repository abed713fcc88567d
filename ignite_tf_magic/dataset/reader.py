"""Reads partitions as a stream of column chunks: one thread per owner, chunks in a fixed order.

Each owner's partitions are read in the order passed. The reader takes chunks of fixed numbers of rows from the owners
in turn; the first chunks are smaller, so that a training can start sooner. The sequence of rows therefore depends on
the data, the owners and the requested order, not on timing or page sizes. A sequence that was read under other owners
can be read again: it is a `Stream`, each of whose groups belonged to one owner then.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ignite_tf_magic.client.cache_scan import CacheScan
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.packed_entries import partitions_of_entries
from ignite_tf_magic.client.packed_rows import PackedDecoder
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.dataset.passes import Stream
from ignite_tf_magic.dataset.pool import SHARED
from ignite_tf_magic.dataset.source import Source, check_complete
from ignite_tf_magic.errors import EmptyCache, IgniteTfError
from ignite_tf_magic.protocol.affinity import PartitionMap
from ignite_tf_magic.protocol.columns import ColumnChunk, PageDecoder, UnknownSchema
from ignite_tf_magic.protocol.layout import Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.objects import BinaryType
from ignite_tf_magic.protocol.page_series import PageSeries

QUEUED_CHUNKS = 2

PartitionOrder = Callable[[Sequence[int]], Sequence[int]]


def random_order(seed: int) -> PartitionOrder:
    """Return a function that orders partitions by a seed, always the same way."""
    return lambda partitions: np.random.default_rng(seed).permutation(np.asarray(partitions)).tolist()


class ChunkReader(Closing):
    """One pass over a source. Iterate it once; `close` ends its threads, even in the middle.

    Args:
        source: What to read.
        order: The order of the partitions; None for ascending.
        stream: Partitions and groups of an earlier pass; None groups the source's partitions by their current owners.

    Attributes:
        stream: The partitions and groups that are read.
    """

    def __init__(
        self, source: Source, order: PartitionOrder | None = None, stream: Stream | None = None
    ) -> None:
        if source.layout is None:
            raise EmptyCache(f"cache {source.cache!r} holds no rows, so their types are unknown")
        self._source = source
        self._layout = source.picked.layout if source.picked else source.layout
        self._client = source.clients.take()
        self._expected_entries: int | None = None
        try:
            check_complete(source, self._client, stream.partitions if stream else source.partitions)
            self.stream, self._owners = self._start_owners(order or (lambda partitions: partitions), stream)
        except BaseException:
            self._client.close()
            raise

    def close(self) -> None:
        """End the reading threads. The connections stay open for a while, for the next pass."""
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
        waiting, num_rows = deque(self._owners), 0
        while waiting:
            owner = waiting.popleft()
            chunk = owner.next_chunk()
            if chunk is not None:
                waiting.append(owner)
                num_rows += chunk.num_rows
                yield chunk
        if self._source.picked and num_rows < (self._source.expected_rows or 0):
            self._check_all_fit()
        num_entries = sum(owner.num_entries for owner in self._owners)
        if self._expected_entries is not None and num_entries != self._expected_entries:
            raise IgniteTfError(
                f"cache {self._source.cache!r} had {self._expected_entries:,} entries of packed rows here when the "
                f"dataset was made, but {num_entries:,} were read: it was written again since, or has lost some. Make "
                "the dataset again"
            )

    def _check_all_fit(self) -> None:
        """Decode whole rows, to raise for rows that the SQL table hides.

        Such a row's type is not the layout's, so decoding it raises.
        """
        source, cache = self._source, Cache(self._client, self._source.cache)
        if source.layout is None:
            return
        decoder = RenewedDecoder(source.layout, self._client)
        scan = cache.scan(self.stream.partitions, source.sizes, cache.baseline())
        try:
            for scanned in scan.series():
                while scanned.series.num_rows:
                    decoder.decode(scanned.series, ColumnChunk(source.layout, source.chunk_rows))
        finally:
            scan.close()

    def _start_owners(
        self, order: PartitionOrder, stream: Stream | None
    ) -> tuple[Stream, list[_OwnerThread]]:
        source = self._source
        cache = Cache(self._client, source.cache)
        current = cache.partition_map()
        owners = current.primary_of() if current.partitioned else source.baseline.owners
        baseline = source.baseline.at(owners, (node.node_id for node in self._client.router.known_nodes))
        if stream is None:
            stream = Stream.by_owner(owners, source.partitions, source.chunk_rows)
        source.learn(stream)
        query = source.picked.query if source.picked else None
        groups = stream.ordered(order)
        if source.num_entries is not None:
            groups = self._with_entries(groups, cache, current, source.num_entries)
        scans = [cache.scan(group, source.sizes, baseline, query) for group in groups]
        threads = [
            _OwnerThread(self._client, scan, source, self._layout, stream.chunk_rows, number)
            for number, scan in enumerate(scans)
        ]
        return stream, threads

    def _with_entries(
        self, groups: list[list[int]], cache: Cache, partition_map: PartitionMap, known: int
    ) -> list[list[int]]:
        """Leave out the partitions without entries; packed caches have many of them."""
        where = partitions_of_entries(max(known, cache.size()), partition_map)
        if where is None:
            return groups
        self._expected_entries = int(np.isin(where[:known], list(itertools.chain(*groups))).sum())
        filled = set(where.tolist())
        return [[partition for partition in group if partition in filled] for group in groups]


def chunk_sizes(chunk_rows: int) -> Iterator[int]:
    """Yield the rows of each chunk: an eighth twice, then doubling up to `chunk_rows`.

    Batches then still lie within one chunk.
    """
    first = max(1, chunk_rows // 8)
    yield first
    while first < chunk_rows:
        yield first
        first *= 2
    yield from itertools.repeat(chunk_rows)


class _OwnerThread:
    """Reads one owner's partitions and decodes them into chunks, a few chunks ahead."""

    def __init__(
        self,
        client: Client,
        scan: CacheScan,
        source: Source,
        layout: RowLayout,
        chunk_rows: int,
        number: int,
    ) -> None:
        self._scan = scan
        self._layout = layout
        self._chunk_rows = chunk_sizes(chunk_rows)
        self._decoder = row_decoder(source, layout, client)
        self._chunks: queue.Queue[ColumnChunk | BaseException | None] = queue.Queue(QUEUED_CHUNKS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ignite-read-{number}", daemon=True)
        self._thread.start()

    @property
    def num_entries(self) -> int:
        """The number of entries of packed rows read so far."""
        return self._decoder.num_entries if isinstance(self._decoder, PackedDecoder) else 0

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
        """Wait for the next chunk; return None at the end. Raise the error that ended the thread, if any."""
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
        for scanned in self._scan.series():
            while self._decoder.has_rows(scanned.series):
                self._decoder.decode(scanned.series, chunk)
                if not chunk.free_rows:
                    self._put(chunk)
                    chunk = self._new_chunk()
            if self._closing.is_set():
                return
        if chunk.num_rows:
            self._put(chunk)

    def _new_chunk(self) -> ColumnChunk:
        return ColumnChunk(self._layout, next(self._chunk_rows), SHARED.allocate)


class RenewedDecoder:
    """Decodes pages; asks the cluster for schemas that are newer than the layout. For one thread."""

    def __init__(self, layout: RowLayout, client: Client, *, as_views: bool = False) -> None:
        self._client = client
        self._layout = layout
        self._as_views = as_views
        self._decoder = PageDecoder(layout, as_views=as_views)

    def has_rows(self, series: PageSeries) -> bool:
        """Return whether there are rows left to decode."""
        return bool(series.num_rows)

    def decode(self, series: PageSeries, chunk: ColumnChunk) -> None:
        """Decode as `PageDecoder.decode`."""
        asked: set[int | None] = set()
        while True:
            try:
                return self._decoder.decode(series, chunk)
            except UnknownSchema as unknown:
                if unknown.enum_type in asked:
                    raise
                asked.add(unknown.enum_type)
                self._layout = _with_current_types(self._layout, self._client, unknown.enum_type)
                self._decoder = PageDecoder(self._layout, as_views=self._as_views)


def row_decoder(source: Source, layout: RowLayout, client: Client) -> RenewedDecoder | PackedDecoder:
    """Return a decoder that turns the pages of a source into rows of a layout."""
    if source.entries is None:
        return RenewedDecoder(layout, client)
    entries = RenewedDecoder(source.entries, client, as_views=True)
    return PackedDecoder(entries, source.entries, layout, source.cache)


def _with_current_types(layout: RowLayout, client: Client, enum_type: int | None) -> RowLayout:
    """Add new schemas of the layout's types, and the type of an enum that the layout lacks."""

    def renew(node: Node) -> Node:
        known: dict[int, BinaryType | None] = {each.type_id: each for each in node.types}
        if enum_type is not None and isinstance(node, Leaf) and node.as_text:
            known.setdefault(enum_type, None)
        asked = {number: client.types.find(number, refresh=True) or each for number, each in known.items()}
        types = tuple(filter(None, asked.values()))
        if isinstance(node, Leaf):
            return replace(node, types=types)
        return ObjectNode(
            node.path, types, tuple((field_id, renew(child)) for field_id, child in node.fields)
        )

    return RowLayout(renew(layout.key), renew(layout.value))
