"""Opens a cache for reading: what is known before the first row, and what all readers of it share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ignite_tf_magic.client.cache_facts import check_complete as check_load
from ignite_tf_magic.client.cache_facts import read_facts
from ignite_tf_magic.client.cache_scan import Baseline, CacheScan
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.packed_entries import holds_packed_rows, num_packed_rows
from ignite_tf_magic.client.page_sizes import PageSizes, PartitionStats
from ignite_tf_magic.client.regions import note_regions
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.row_counts import check_rows
from ignite_tf_magic.client.sql_tables import table_as_it_is
from ignite_tf_magic.dataset.kept_client import KeptClient
from ignite_tf_magic.dataset.options import AssignedShard, ReadOptions
from ignite_tf_magic.dataset.packed_source import check_packed, find_packed
from ignite_tf_magic.dataset.passes import RowShard, Stream
from ignite_tf_magic.dataset.pool import SHARED
from ignite_tf_magic.dataset.row_queries import Picked, check_condition, pick
from ignite_tf_magic.dataset.share_counts import SharesToCount
from ignite_tf_magic.dataset.snapshot import Snapshot
from ignite_tf_magic.errors import ConfigError, IgniteTfError, PartitionsLost, SchemaError, format_ranges
from ignite_tf_magic.protocol.layout import Leaf, RowLayout
from ignite_tf_magic.protocol.layout_finder import LayoutFinder

CHUNK_BYTES = 4 * 1024 * 1024
MAX_CHUNK_ROWS = 32 * 1024
SPREAD_PARTITIONS = 24
SAMPLED_ROWS = 256
_VARIABLE_ROW_BYTES = 256
_RECOUNT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Source:
    """A cache that is ready to be read, in the state in which it was opened.

    Attributes:
        partitions: The partitions to read, ascending.
        layout: The layout of the rows; None if there are no rows to find it from.
        row_bytes: Mean stored size of the sampled rows; 0 if there were none.
        sizes: Page sizes, refined by every reading.
        clients: Connections, kept from one reading to the next.
        picked: What the cluster sends of the rows; None if it sends whole rows.
        entries: The layout of the cache's entries, if its rows are packed into entries.
        num_entries: The number of these entries; None if some may be missing.
        expected_rows: The number of rows to read, if it is known.
        left_out: Fields that are not read because they have no tensor form, and why.
    """

    cache: str
    partitions: tuple[int, ...]
    layout: RowLayout | None
    baseline: Baseline
    row_bytes: int
    sizes: PageSizes
    clients: KeptClient
    picked: Picked | None = None
    entries: RowLayout | None = None
    num_entries: int | None = None
    expected_rows: int | None = None
    left_out: Mapping[str, SchemaError] = field(default_factory=dict)

    @property
    def chunk_rows(self) -> int:
        """The number of rows of a chunk: about 4 MiB of columns, a power of two.

        Batches of a power of two then lie within one chunk, and tf.data passes them on without copying. The limit is an
        eighth above 4 MiB, so that four rows of 1 MiB and their keys fit into a chunk.
        """
        leaves = self.layout.leaves() if self.layout else ()
        width = sum(_row_bytes(leaf) for leaf in leaves)
        if not all(leaf.is_fixed for leaf in leaves):
            width = max(width, self.row_bytes)  # else chunks of large strings would fill the memory
        fitting = max(1, min(MAX_CHUNK_ROWS, CHUNK_BYTES * 9 // 8 // max(width, 1)))
        return 1 << (fitting.bit_length() - 1)

    def num_rows(self) -> int | None:
        """Ask for the current number of rows in the whole cache; return None if it is unknown.

        Errors count as unknown: reading the cache raises them.
        """
        with suppress(IgniteTfError):
            client = self.clients.take()
            try:
                cache = Cache(client, self.cache)
                size, nodes = cache.size(), {node.node_id for node in client.nodes()}
                if size < self.baseline.size and not self.baseline.nodes <= nodes:
                    return None  # just after a node has left, the others may count only their own rows
                return num_packed_rows(cache, size) if self.entries else size
            finally:
                self.clients.give_back(client)
        return None

    def measured(self) -> dict[int, tuple[int, int]]:
        """Return the rows and the largest row's bytes of each measured partition."""
        return {
            partition: (stats.rows, stats.max_row_bytes) for partition, stats in self.sizes.known().items()
        }

    def learn(self, stream: Stream) -> None:
        """Adopt what other workers have measured of a stream's partitions."""
        if stream.measured:
            self.sizes.learn({p: PartitionStats(*measures) for p, measures in stream.measured.items()})

    def shard(self, assignment: AssignedShard | None, *, counts: bool = True) -> RowShard | None:
        """Return a worker's shard of the source; None if no launcher has assigned one.

        Args:
            assignment: The launcher's assignment.
            counts: Whether the row counts of all workers must be exact. If they have not been counted, the call blocks
                until they are known, and raises as `SharesToCount.count`.
        """
        if assignment is None:
            return None
        rows_by_worker = assignment.rows_by_worker
        if counts and assignment.to_count:
            rows_by_worker = self._counted(assignment.to_count)
        stream = Stream((self.partitions,), self.chunk_rows)
        num_partitions = max(self.baseline.owners) + 1  # a replicated cache has only partition -1, all of it
        is_ordered = self.picked is None or self.picked.is_ordered
        return RowShard(assignment.worker, rows_by_worker, num_partitions, stream, self.measured, is_ordered)

    def _counted(self, shares: SharesToCount) -> tuple[int, ...]:
        client = self.clients.take()
        try:
            return shares.count(client, self.cache)
        finally:
            self.clients.give_back(client)

    def told_left_out(self) -> str:
        """Return a sentence that names the fields left out and why; empty if there are none."""
        if not self.left_out:
            return ""
        names, reasons = ", ".join(self.left_out), "; ".join(map(str, self.left_out.values()))
        return f"in cache {self.cache!r}, these fields are left out: {names}; {reasons}"

    @property
    def snapshot(self) -> Snapshot | None:
        """What another process needs to read the same rows in the same way; None without a layout."""
        return Snapshot(self.layout, self.baseline, self.row_bytes, self.entries) if self.layout else None


def _row_bytes(leaf: Leaf) -> int:
    if not leaf.is_fixed:
        return _VARIABLE_ROW_BYTES
    return leaf.dtype.itemsize * (leaf.row_shape[0] if leaf.row_shape else 1)


def open_source(options: ReadOptions, snapshot: Snapshot | None = None, *, warns: bool = True) -> Source:
    """Connect, find the owners of the partitions, and sample some rows.

    A snapshot replaces the last two steps.

    Args:
        options: What to read.
        snapshot: What another process has found out.
        warns: Whether to warn about fields that are left out.

    Raises:
        ConfigError: There is no such partition, or the snapshot is of another cache.
        CacheNotFound: No such cache; the error lists similar names.
        CacheNameError: Several caches have SQL tables of that name.
        RowsLost, LoadIncomplete: The cache holds only a part of its rows.
        SchemaError: The rows have no common layout.
        ConnectionFailed, AuthenticationError: The cluster cannot be reached.
    """
    source = opened(options, partial(_look_at, options, snapshot))
    if warns and (told := source.told_left_out()):
        told += ". To silence this, name the fields to read: fields=[...]"
        warnings.warn(told, stacklevel=3)  # the caller of IgniteDataset
    return source


def opened(options: ReadOptions, look: Callable[[Client, KeptClient], Source]) -> Source:
    """Connect and return what `look` finds; the connection is kept for the first reading."""
    clients = KeptClient(options.connect, on_idle=SHARED.clear)
    client = clients.take()
    try:
        source = look(client, clients)
    except BaseException:
        client.close()
        raise
    clients.give_back(client)
    return source


def _look_at(options: ReadOptions, snapshot: Snapshot | None, client: Client, clients: KeptClient) -> Source:
    check_condition(options.where, options.where_args)
    cache = client.find_cache(options.cache)
    options = replace(options, cache=cache.name)
    if snapshot and snapshot.baseline.cache != options.cache:
        raise ConfigError(
            f"the dataset was made for cache {snapshot.baseline.cache!r}, and IGNITE_DATASET_CACHE_NAME here "
            f"says {options.cache!r}"
        )
    baseline = snapshot.baseline if snapshot else whole_baseline(options, cache)
    partitions = choose_partitions(options, client, baseline)
    sizes = PageSizes(options.page_rows)
    note_regions(client, sizes, baseline, partitions)
    left_out: dict[str, SchemaError] = {}
    layout, row_bytes, entries = (
        (snapshot.layout, snapshot.row_bytes, snapshot.entries)
        if snapshot
        else _find_layout(options, client, cache, partitions, baseline, sizes, left_out)
    )
    expected = None if entries else _expected_rows(options, partitions, baseline)
    picked = None
    if layout and not snapshot and not entries and (options.where is not None or expected is not None):
        picked = pick(options, cache, layout, row_bytes)
    return Source(
        options.cache,
        partitions,
        layout,
        baseline,
        row_bytes,
        sizes,
        clients,
        picked,
        entries,
        baseline.size if entries and not options.allow_partial else None,
        expected,
        left_out,
    )


def _expected_rows(options: ReadOptions, partitions: Sequence[int], baseline: Baseline) -> int | None:
    if options.where is not None:
        return None
    if options.assignment:
        if options.assignment.to_count:
            return None
        return options.assignment.rows_by_worker[options.assignment.worker]
    return baseline.size if len(partitions) == len(baseline.owners) else None


def whole_baseline(options: ReadOptions, cache: Cache) -> Baseline:
    """Return the cache's baseline, unless the cache is known to hold only a part of its rows."""
    baseline = cache.baseline()
    if not options.allow_partial:
        facts = read_facts(cache.client, cache.name)
        if not options.is_growing:
            check_load(cache.client, cache.name, facts)
        for doubt in check_rows(cache, baseline, facts):
            warnings.warn(doubt, stacklevel=6)  # the caller of IgniteDataset
    return baseline


def choose_partitions(options: ReadOptions, client: Client, baseline: Baseline) -> tuple[int, ...]:
    """Return the partitions to read, ascending.

    Raises:
        ConfigError: There is no such partition.
    """
    chosen = sorted(baseline.owners if options.partitions is None else options.partitions)
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


def _find_layout(
    options: ReadOptions,
    client: Client,
    cache: Cache,
    partitions: Sequence[int],
    baseline: Baseline,
    sizes: PageSizes,
    left_out: dict[str, SchemaError],
) -> tuple[RowLayout | None, int, RowLayout | None]:
    """Return the rows' layout and mean size, and, if rows are packed, the layout of the entries."""
    config = cache.config()
    if holds_packed_rows(config):
        check_packed(options)
        return find_packed(options.fields, cache, partitions, baseline, sizes)
    finder = LayoutFinder(
        client.types.find,
        options.fields,
        options.fill,
        options.variable,
        options.nulls,
        as_text=options.as_text,
        table=table_as_it_is(cache, config),
    )
    # Sample the partitions of a run's other workers, too. Otherwise chance (such as whether a sampled row has a null)
    # would give each worker a different structure.
    looked_at = sorted(baseline.owners) if options.assignment else partitions
    num_bytes = _sample(cache, looked_at, baseline, finder, sizes)
    if not finder.num_rows:
        return finder.declared_layout(), 0, None
    layout = finder.layout()
    left_out |= finder.left_out
    return layout, num_bytes // finder.num_rows, None


def _sample(
    cache: Cache, partitions: Sequence[int], baseline: Baseline, finder: LayoutFinder, sizes: PageSizes
) -> int:
    """Sample the first rows of partitions until there are enough, and return their bytes.

    The partitions are spread over all. A cache with fewer rows is read whole. If the wanted partitions are empty, other
    partitions take their place.
    """
    spread = partitions[:: max(1, len(partitions) // SPREAD_PARTITIONS)]
    wanted = dict.fromkeys((*spread, *partitions, *sorted(baseline.owners)))
    # Go owner by owner: that needs fewer connections.
    rank = {owner: at for at, owner in enumerate(dict.fromkeys(baseline.owners[p] for p in wanted))}
    first = frozenset(spread)
    ordered = sorted(wanted, key=lambda p: (p not in first, rank[baseline.owners[p]]))
    return look_at_rows(cache.scan(ordered, sizes, baseline), finder)


def look_at_rows(scan: CacheScan, finder: LayoutFinder) -> int:
    """Sample the first rows of a scan until there are enough, and return their bytes.

    The scan is closed.
    """
    try:
        num_bytes = 0
        for scanned in scan.pages():
            finder.add(scanned.page.rows, scanned.page.num_rows)
            num_bytes += len(scanned.page.rows)
            if finder.num_rows >= SAMPLED_ROWS:
                break
    finally:
        scan.close()
    return num_bytes


def check_complete(source: Source, client: Client, partitions: Iterable[int]) -> None:
    """Raise if nodes have left since the source was opened and rows are missing because of it."""
    alive = (node.node_id for node in client.router.known_nodes)
    lost = source.baseline.lost(alive, partitions)
    if not lost:
        return
    cache = client.cache(source.cache)

    def is_complete() -> bool | None:
        return cache.size() >= source.baseline.size or None

    # For half a second after a node was killed, the others may count only their own rows.
    if wait_for(is_complete, _RECOUNT_TIMEOUT_S) is None:
        raise PartitionsLost(
            source.cache, lost, "their nodes left the cluster since the dataset was made; load the data again"
        )
