"""Filters change events by partition, because Ignite reports those of the whole cache."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence

from ignite_tf_magic.errors import ConfigError, SchemaError
from ignite_tf_magic.protocol.affinity import PartitionMap, hashes_of_integers, key_hash, partitions_of_hashes
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.continuous import RowEvent
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.read_values import read_value

_LONG_BYTES = 9  # including the type code


class PartitionFilter:
    """Selects the events of some partitions.

    Args:
        cache: The cache's name, for errors.
        partitions: The partitions.
        dealt: How keys are assigned to partitions. Nodes that join or leave do not change that.

    Raises:
        ConfigError: There is no such partition, or only the cluster knows the partition of a key.
    """

    def __init__(self, cache: str, partitions: Collection[int], dealt: PartitionMap) -> None:
        if not (dealt.partitioned and dealt.default_affinity):
            why = (
                "does not map keys to partitions as Ignite does by default"
                if dealt.partitioned
                else "is replicated"
            )
            raise ConfigError(
                f"cache {cache!r} {why}, so only its nodes know the partition of a key: follow all of its partitions"
            )
        if unknown := sorted(set(partitions) - set(range(dealt.num_partitions))):
            raise ConfigError(
                f"cache {cache!r} has no partition {unknown[0]}; it has {dealt.num_partitions}, from 0"
            )
        self._cache = cache
        self._is_own = np.zeros(dealt.num_partitions, bool)
        self._is_own[sorted(partitions)] = True

    def own(self, events: Sequence[RowEvent]) -> list[RowEvent]:
        """Return the events of rows in these partitions.

        Raises:
            SchemaError: Only the cluster knows the partition of a key of that type.
        """
        keys = b"".join(event.key for event in events)
        table = np.frombuffer(keys, np.uint8)
        if len(keys) == _LONG_BYTES * len(events) and (table[::_LONG_BYTES] == TypeCode.LONG).all():
            longs = table.reshape(-1, _LONG_BYTES)[:, 1:].copy().view("<i8")[:, 0]
            hashes = hashes_of_integers(longs)
        else:
            hashes = np.array([self._hash(event.key) for event in events], np.int32)
        is_own = self._is_own[partitions_of_hashes(hashes, len(self._is_own))].tolist()
        return [event for event, own in zip(events, is_own, strict=True) if own]

    def _hash(self, encoded: memoryview) -> int:
        key = read_value(Reader(encoded))
        if isinstance(key, bool | np.bool_) or not isinstance(key, int | np.integer | str | uuid.UUID):
            raise SchemaError(
                f"cache {self._cache!r} cannot be followed by partition: it has a row with key {key!r}, and only the "
                "partitions of whole numbers, text and UUIDs are known here. Follow all partitions"
            )
        return key_hash(key)
