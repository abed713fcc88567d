"""Recognizes caches whose entries hold many rows each, and counts the rows.

Entries are numbered from 0. Each holds the same number of rows, except the last. So reading two entries is enough to
compute the number of rows of any number of entries.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ignite_tf_magic.client.cache_facts import LoadState, load_mark, read_facts
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.affinity import PartitionMap, hashes_of_integers, partitions_of_hashes
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import CacheConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Fields of an entry: the number of rows, and the rows themselves.
NUM_ROWS, PACKED_ROWS = "NUM_ROWS", "PACKED_ROWS"


@dataclass(frozen=True, slots=True)
class PackedCount:
    """The number of rows in the entries of a cache.

    Attributes:
        entry_rows: Rows of each entry except the last.
        last_rows: Rows of the last entry.
        last_partition: Partition of the last entry.
    """

    entry_rows: int
    last_rows: int
    last_partition: int

    def rows(self, num_entries: int, partitions: Collection[int] | None) -> int:
        """Return the number of rows in that many entries of some partitions; None means all partitions."""
        if not num_entries:
            return 0
        has_last = partitions is None or self.last_partition in partitions
        return num_entries * self.entry_rows - has_last * (self.entry_rows - self.last_rows)


def holds_packed_rows(config: CacheConfig) -> bool:
    """Return whether a cache's entries hold many rows each."""
    fields = {field.name for entity in config.query_entities for field in entity.fields if not field.is_key}
    return {NUM_ROWS, PACKED_ROWS} <= fields


def num_packed_rows(cache: Cache, num_entries: int) -> int:
    """Return the number of rows in all entries of a cache.

    Raises:
        SchemaError: A load did not write these entries.
    """
    return packed_count(cache, num_entries).rows(num_entries, None) if num_entries else 0


def packed_count(cache: Cache, num_entries: int) -> PackedCount:
    """Read the row counts of the first and the last entry of a cache.

    Raises:
        SchemaError: The entries are not numbered from 0, as a load numbers them.
    """
    partition_map, last = cache.partition_map(), num_entries - 1
    mark, found = load_mark(read_facts(cache.client, cache.name)), cache.get_all({0, last})
    is_whole = mark is None or mark.state is not LoadState.COMPLETE or mark.expected_rows == num_entries
    partitions = partitions_of_entries(num_entries, partition_map)
    if not is_whole or len(found) < len({0, last}) or (partition_map.partitioned and partitions is None):
        raise SchemaError(
            f"the packed rows of cache {cache.name!r} are not those that a load has written, so their number is "
            "unknown. Pack the rows again"
        )
    first_rows, last_rows = (int(found[key].fields[NUM_ROWS]) for key in (0, last))
    return PackedCount(first_rows, last_rows, WHOLE_CACHE if partitions is None else int(partitions[-1]))


def partitions_of_entries(num_entries: int, partition_map: PartitionMap) -> NDArray[np.int32] | None:
    """Return the partition of each entry; None if that is unknown here.

    The other partitions, most of them in a small cache, need not be read.
    """
    if not (partition_map.partitioned and partition_map.default_affinity):
        return None
    hashes = hashes_of_integers(np.arange(num_entries, dtype=np.int64))
    return partitions_of_hashes(hashes, partition_map.num_partitions)
