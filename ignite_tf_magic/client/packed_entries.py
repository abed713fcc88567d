"""Caches whose entries hold many rows each: how they are told from others, and how many rows they hold.

Entries are numbered from 0, and hold the same number of rows each, but for the last one. So a look at two of them tells
how many rows any number of them hold.
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

# Fields of an entry: how many rows it holds, and these.
NUM_ROWS, PACKED_ROWS = "NUM_ROWS", "PACKED_ROWS"


@dataclass(frozen=True, slots=True)
class PackedCount:
    """How many rows entries hold.

    Attributes:
        entry_rows: Of each but the last.
        last_rows: Of the last one.
        last_partition: Where that is.
    """

    entry_rows: int
    last_rows: int
    last_partition: int

    def rows(self, num_entries: int, partitions: Collection[int] | None) -> int:
        """Return the rows of so many entries, which are those of some partitions; None are all."""
        if not num_entries:
            return 0
        has_last = partitions is None or self.last_partition in partitions
        return num_entries * self.entry_rows - has_last * (self.entry_rows - self.last_rows)


def holds_packed_rows(config: CacheConfig) -> bool:
    """Whether a cache's entries hold many rows each."""
    fields = {field.name for entity in config.query_entities for field in entity.fields if not field.is_key}
    return {NUM_ROWS, PACKED_ROWS} <= fields


def num_packed_rows(cache: Cache, num_entries: int) -> int:
    """Tell how many rows so many entries hold, which are all of a cache's.

    Raises:
        SchemaError: They are not those that a load writes.
    """
    return packed_count(cache, num_entries).rows(num_entries, None) if num_entries else 0


def packed_count(cache: Cache, num_entries: int) -> PackedCount:
    """Look at the first and the last of a cache's entries.

    Raises:
        SchemaError: They are not numbered from 0, as those are that a load writes.
    """
    partition_map, last = cache.partition_map(), num_entries - 1
    mark, found = load_mark(read_facts(cache.client, cache.name)), cache.get_all({0, last})
    is_whole = mark is None or mark.state is not LoadState.COMPLETE or mark.expected_rows == num_entries
    partitions = partitions_of_entries(num_entries, partition_map)
    if not is_whole or len(found) < len({0, last}) or (partition_map.partitioned and partitions is None):
        raise SchemaError(
            f"the entries of cache {cache.name!r} hold packed rows, and are not those that a load has written: nobody "
            "knows how many rows they hold. Pack the rows again"
        )
    first_rows, last_rows = (int(found[key].fields[NUM_ROWS]) for key in (0, last))
    return PackedCount(first_rows, last_rows, WHOLE_CACHE if partitions is None else int(partitions[-1]))


def partitions_of_entries(num_entries: int, partition_map: PartitionMap) -> NDArray[np.int32] | None:
    """Return the partition of each of so many entries; None where that is not known here.

    So the other partitions, most of them in a small cache, need not be asked.
    """
    if not (partition_map.partitioned and partition_map.default_affinity):
        return None
    hashes = hashes_of_integers(np.arange(num_entries, dtype=np.int64))
    return partitions_of_hashes(hashes, partition_map.num_partitions)
