"""Checks that each row of a cache has a row in the cache of its predictions."""

from __future__ import annotations

from dataclasses import replace

from ignite_tf_magic.client.cache_facts import LoadMark
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.row_counts import counted_now, note_count
from ignite_tf_magic.errors import PredictionIncomplete, format_ranges
from ignite_tf_magic.prediction.progress import note
from ignite_tf_magic.runs.hosts.topology import topology_of

GO_ON = "continue it with resume=True (--resume)"
# For half a second after a node was killed, other nodes may count only their own rows.
_RECOUNT_S = 2.0


def compared_rows(client: Client, source: str, target: str, mark: LoadMark) -> int:
    """Compare the number of rows of two caches at the end of a prediction; record and return it.

    Keys need not be compared: workers write only keys that they read, and no other process writes.

    Raises:
        PredictionIncomplete: The numbers differ, or a partition was left out; it will be predicted again.
    """
    read, written = Cache(client, source), client.cache(target)
    left_out = _left_out(client, read, target, mark)
    sizes = (0, 0)

    def equal() -> int | None:
        nonlocal sizes
        sizes = read.size(), written.size()
        return sizes[0] if sizes[0] == sizes[1] else None

    rows = wait_for(equal, _RECOUNT_S)
    if rows is None or left_out:
        raise _incomplete(client, read, written, mark, sizes, left_out)
    nodes = client.nodes()
    count = counted_now("a prediction", rows, (node.node_id for node in nodes), topology_of(nodes), ())
    note_count(client, target, replace(count, filled=None))
    return rows


def _left_out(client: Client, read: Cache, target: str, mark: LoadMark) -> set[int]:
    partition_map = read.partition_map()
    wanted = set(partition_map.primary_of()) if partition_map.partitioned else {WHOLE_CACHE}
    return wanted - note(client, target, mark).done


def _incomplete(
    client: Client,
    read: Cache,
    written: Cache,
    mark: LoadMark,
    sizes: tuple[int, int],
    left_out: set[int],
) -> PredictionIncomplete:
    """Mark the differing partitions to be predicted again, and return an error that lists them."""
    differing = left_out | _differing(read, written)
    known = note(client, written.name, mark).done
    note(client, written.name, mark, undone=differing or known)
    where = f"partitions {format_ranges(sorted(differing))} differ" if differing else "their sums differ"
    return PredictionIncomplete(
        written.name,
        differing,
        f"cache {read.name!r} has {sizes[0]:,} rows, and {written.name!r} has {sizes[1]:,} predicted of them: {where}. "
        f"Rows were added or removed meanwhile, or a lost node held some. If rows are missing, {GO_ON}, which "
        "predicts these partitions again; if there are too many, predict again with replace=True (--replace)",
    )


def _differing(read: Cache, written: Cache) -> set[int]:
    """Return the partitions with different numbers of rows; an empty set if the caches are partitioned differently."""
    first, second = read.partition_stats(), written.partition_stats()
    if first.keys() != second.keys() or first.keys() == {WHOLE_CACHE}:
        return set()
    return {partition for partition, stats in first.items() if stats.rows != second[partition].rows}
