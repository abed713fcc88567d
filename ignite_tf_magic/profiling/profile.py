"""Statistics of a cache before a training: its rows, bytes, nulls, classes, distributions and skew.

If the cache has a SQL table, the cluster computes what SQL can over all rows. All other statistics come from a sample
of whole partitions chosen at random (`rows.draw_rows`), or of entries if the rows are packed, and are marked as
estimated. A cache that is not larger than the sample is read completely, and then all statistics are exact.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.client.cache_facts import check_complete, read_facts
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE, Baseline
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.local_rows import rows_by_node
from ignite_tf_magic.client.row_counts import check_rows
from ignite_tf_magic.client.sql_tables import CacheTable, Query, table_of
from ignite_tf_magic.errors import LoadIncomplete, RowsLost, ServerError
from ignite_tf_magic.profiling.column_numbers import ColumnProfile
from ignite_tf_magic.profiling.column_profiles import Looked, Report, said_if_it_lasts
from ignite_tf_magic.profiling.packed import NULLS_NOTE, packed_rows
from ignite_tf_magic.profiling.rows import RowSample, draw_rows
from ignite_tf_magic.profiling.seen_fields import RowKind, kinds_of, paths_of, type_finder
from ignite_tf_magic.protocol.field_names import FieldNames
from ignite_tf_magic.protocol.row_fields import Path, RowFields

SAMPLED_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class PartitionSkew:
    """The distribution of rows over partitions.

    Attributes:
        num_partitions: Number of partitions of the cache.
        num_counted: Number of partitions that were counted: all of them, or those of the sample.
        num_empty: Number of counted partitions without rows.
        least, median, greatest: Rows per counted partition.
    """

    num_partitions: int
    num_counted: int
    num_empty: int
    least: int
    median: float
    greatest: int


@dataclass(frozen=True, slots=True)
class NodeRows:
    """The number of rows that a node holds as primary.

    Attributes:
        address: First endpoint of the node.
        rows: Number of rows; None if they were not counted.
    """

    address: str
    num_partitions: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """Statistics of a cache.

    Attributes:
        rows: Number of rows of the whole cache.
        backups: Copies of each row in addition to the first.
        num_sampled: Number of rows from which estimates were made.
        num_read_partitions: Number of partitions that were read completely for the sample.
        read_from: Description of what was read for the sample: "11 of 1,024 partitions", "9 of 180 entries".
        is_whole: Whether all rows were read, so that nothing is estimated.
        table: The SQL table that was queried; None if there was none, or no need for it.
        row_bytes: Mean stored size of the rows that were read, in bytes, without backups and indexes.
        kinds: Types of keys and values of the sampled rows.
        notes: Remarks for the user.
    """

    cache: str
    rows: int
    backups: int
    num_sampled: int
    num_read_partitions: int
    read_from: str
    is_whole: bool
    table: str | None
    row_bytes: float
    kinds: tuple[RowKind, ...]
    columns: tuple[ColumnProfile, ...]
    partitions: PartitionSkew | None
    nodes: tuple[NodeRows, ...]
    notes: tuple[str, ...]


def make_profile(
    client: Client,
    query: Query,
    report: Report,
    name: str,
    columns: Sequence[str],
    num_rows: int,
) -> CacheProfile:
    """Compute the statistics of a cache; see `Session.profile`."""
    cache = client.find_cache(name)
    baseline = cache.baseline()
    packed = packed_rows(cache, baseline)
    total_rows = packed.num_rows if packed else baseline.size
    table, why_no_table = (None, "") if packed else table_of(query, cache)
    with said_if_it_lasts(report, f"reading a sample of the rows of cache {cache.name}"):
        sample = packed.draw(num_rows) if packed else draw_rows(cache, baseline, num_rows, type_finder(cache))
    asked = None if sample.is_whole else table
    looked = Looked(client, query, report, sample, asked, total_rows)
    found = looked.profiles(_chosen(cache.name, _paths(sample.rows, asked), table, columns))
    notes = [*_doubts(cache, baseline), *_sample_notes(sample, is_packed=packed is not None), *looked.notes]
    if packed:
        notes.append(NULLS_NOTE)
    elif table is None and not sample.is_whole:
        notes.append(f"SQL was not asked about cache {cache.name}: {why_no_table}")
    return CacheProfile(
        cache.name,
        total_rows,
        baseline.backups,
        len(sample.rows),
        sample.num_read_partitions,
        sample.read_from,
        sample.is_whole,
        asked.name if asked else None,
        sample.row_bytes,
        kinds_of(sample.rows),
        tuple(found),
        _skew(sample, baseline),
        _nodes(client, baseline, sample),
        tuple(notes),
    )


def _paths(rows: Sequence[RowFields], table: CacheTable | None) -> list[Path]:
    """List the fields of rows, and if SQL is queried also the table's columns that no sampled row has."""
    paths = paths_of(rows)
    if table is None:
        return paths
    known = {column.name for path in paths if (column := table.column_of(path))}
    others = [each.path for each in table.columns if each.path and each.name not in known]
    return [*paths, *(path for path in others if path[0] == "val" and len(path) > 1)]


def _chosen(
    cache_name: str, paths: Sequence[Path], table: CacheTable | None, wanted: Sequence[str]
) -> list[Path]:
    """Return the requested columns.

    Raises:
        SchemaError: A name matches no column, or several.
    """
    if not wanted or not paths:
        return list(paths)
    found = {path: column.name for path in paths if table and (column := table.column_of(path))}
    names = FieldNames(paths, found)
    return list(dict.fromkeys(names.find(name, f"profile of cache {cache_name!r}") for name in wanted))


def _doubts(cache: Cache, baseline: Baseline) -> list[str]:
    """Return warnings if some of the cache's rows are missing, which a training would refuse."""
    facts = read_facts(cache.client, cache.name)
    try:
        check_complete(cache.client, cache.name, facts)
        return check_rows(cache, baseline, facts)
    except (LoadIncomplete, RowsLost) as error:
        return [str(error)]


def _sample_notes(sample: RowSample, *, is_packed: bool) -> list[str]:
    if not sample.is_cut:
        return []
    within = (
        "" if is_packed else ", within a partition, whose rows are read in the order of their keys' hashes"
    )
    return [f"the rows are large: reading ended after {sample.read_bytes / 2**20:,.0f} MiB{within}"]


def _skew(sample: RowSample, baseline: Baseline) -> PartitionSkew | None:
    counts = sorted(sample.rows_of.values())
    if WHOLE_CACHE in baseline.owners or not counts:
        return None
    return PartitionSkew(
        len(baseline.owners),
        len(counts),
        counts.count(0),
        counts[0],
        statistics.median(counts),
        counts[-1],
    )


def _nodes(client: Client, baseline: Baseline, sample: RowSample) -> tuple[NodeRows, ...]:
    """Return the number of rows of each node: from the sample if it covers all partitions, else from the nodes."""
    if WHOLE_CACHE in baseline.owners:
        return ()
    counted: Counter[Any] = Counter()
    if len(sample.rows_of) == len(baseline.owners):
        for partition, rows in sample.rows_of.items():
            counted[baseline.owners[partition]] += rows
    else:
        with suppress(ServerError):
            counted.update(rows_by_node(client, baseline.cache))
    num_partitions = Counter(baseline.owners.values())
    return tuple(
        NodeRows(str(node.endpoints[0]), num_partitions[node.node_id], counted.get(node.node_id))
        for node in client.nodes()
        if num_partitions[node.node_id]
    )
