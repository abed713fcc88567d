"""Whether each row of a cache has one in the cache of its predictions."""

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

GO_ON = "go on with it by resume=True (--resume)"
# For half a second after a node was killed, the others may count their own rows only.
_RECOUNT_S = 2.0


def compared_rows(client: Client, source: str, target: str, mark: LoadMark) -> int:
    """Compare the rows of two caches at the end of a prediction, and note their number; returns it.

    Keys need no comparison: a worker writes those that it has read, and nobody else writes.

    Raises:
        PredictionIncomplete: They are not the same, or a partition was left out; it will be predicted again.
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
    """Have what differs be predicted again the next time, and say what does."""
    differing = left_out | _differing(read, written)
    known = note(client, written.name, mark).done
    note(client, written.name, mark, undone=differing or known)
    where = f"partitions {format_ranges(sorted(differing))} differ" if differing else "their sums differ"
    return PredictionIncomplete(
        written.name,
        differing,
        f"cache {read.name!r} has {sizes[0]:,} rows, and {written.name!r} has {sizes[1]:,} predicted of them: {where}. "
        f"Rows have come or gone meanwhile, or a node took some with it. Where rows are missing, {GO_ON}, which "
        "predicts these partitions again; where there are too many, predict anew by replace=True (--replace)",
    )


def _differing(read: Cache, written: Cache) -> set[int]:
    """Find the partitions in which two caches have other numbers of rows; none where their partitions are others."""
    first, second = read.partition_stats(), written.partition_stats()
    if first.keys() != second.keys() or first.keys() == {WHOLE_CACHE}:
        return set()
    return {partition for partition, stats in first.items() if stats.rows != second[partition].rows}
