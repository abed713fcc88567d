"""Affinity: a key's partition, and the node that holds a partition's primary copy.

Source: Ignite's RendezvousAffinityFunction (partition of a hash) and Java's own hash codes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.decimals import decimal_hash
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import BinaryObject, array_hash, java_hash
from ignite_tf_magic.protocol.times import instant_of, millis_of_time
from ignite_tf_magic.protocol.typed_values import INTEGERS, EnumValue, JavaSerialized, JavaTime
from ignite_tf_magic.protocol.write_values import write_value

if TYPE_CHECKING:
    from numpy.typing import NDArray


_NARROW = frozenset(INTEGERS.values())


@dataclass(frozen=True, slots=True, order=True)
class TopologyVersion:
    """A version of the cluster's topology.

    `major` grows with every node that joins or leaves, `minor` with every change of a cache.
    """

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """Primary owners of a cache's partitions at one topology version.

    Attributes:
        owners: Node id -> its primary partitions, ascending. Empty for a replicated cache.
        partitioned: False for a replicated cache, where every node holds all rows.
        default_affinity: Whether `partition_of_key` is valid for the keys of this cache.
    """

    topology_version: TopologyVersion
    owners: Mapping[uuid.UUID, tuple[int, ...]]
    partitioned: bool = True
    default_affinity: bool = True

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the cache."""
        return sum(len(partitions) for partitions in self.owners.values())

    def primary_of(self) -> dict[int, uuid.UUID]:
        """Map each partition to the node of its primary copy."""
        return {partition: node for node, partitions in self.owners.items() for partition in partitions}


def partitions_of_hashes(hashes: NDArray[np.int32], num_partitions: int) -> NDArray[np.int32]:
    """Return the partition of each key hash, vectorised."""
    if num_partitions & (num_partitions - 1) == 0:
        unsigned = hashes.astype(np.uint32)
        spread = unsigned ^ (unsigned >> np.uint32(16))
        return np.asarray(spread & np.uint32(num_partitions - 1), np.int32)
    # Java's % keeps the dividend's sign; safeAbs makes it positive.
    remainder = np.fmod(hashes.astype(np.int64), num_partitions)
    return np.asarray(np.abs(remainder), np.int32)


def hashes_of_integers(keys: NDArray[Any]) -> NDArray[np.int32]:
    """Hash integer keys as Java hashes Byte, Short, Integer (the value) and Long (its halves, xored)."""
    if keys.dtype.itemsize < 8:
        return keys.astype(np.int32)
    unsigned = keys.astype(np.int64).view(np.uint64)
    mixed = (unsigned ^ (unsigned >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return np.asarray(mixed.astype(np.uint32).view(np.int32))


def key_hash(key: Any) -> int:
    """Hash one key as the server does.

    Raises:
        LocalProtocolError: Keys of this type cannot be hashed here. Any node can route the request instead.
    """
    if isinstance(key, bool | np.bool_):
        return 1231 if key else 1237
    if isinstance(key, EnumValue):
        raise LocalProtocolError(f"the affinity of {key!r}, a key that is an enum, is not known")
    if type(key) in _NARROW:
        return int(key)
    if isinstance(key, int | np.integer):
        array = np.asarray([key]) if isinstance(key, np.integer) else np.asarray([key], np.int64)
        return int(hashes_of_integers(array)[0])
    if type(key) in (float, np.float64):
        return int(hashes_of_integers(np.asarray([key], np.float64).view(np.int64))[0])
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, uuid.UUID):
        halves = np.asarray([key.int >> 64 ^ (key.int & (1 << 64) - 1)], np.uint64).view(np.int64)
        return int(hashes_of_integers(halves)[0])
    if isinstance(key, bytes) and not isinstance(key, JavaSerialized):
        return array_hash(key)
    if isinstance(key, decimal.Decimal):
        return decimal_hash(key)
    if isinstance(key, dt.datetime | np.datetime64) and (instant := instant_of(key)) is not None:
        return int(hashes_of_integers(np.asarray([instant[0]], np.int64))[0])
    if isinstance(key, dt.time) and not isinstance(key, JavaTime):
        return int(hashes_of_integers(np.asarray([millis_of_time(key)], np.int64))[0])
    if isinstance(key, BinaryObject):
        return array_hash(b"".join(map(encoded, key.fields.values())))
    raise LocalProtocolError(f"the affinity of a key of type {type(key).__name__} is not known")


def partition_of_key(key: Any, num_partitions: int) -> int:
    """Return the partition of one key."""
    return int(partitions_of_hashes(np.asarray([key_hash(key)], np.int32), num_partitions)[0])


def encoded(value: Any) -> bytes:
    """Encode one key or value in the wire format of requests."""
    writer = Writer()
    write_value(writer, value)
    return bytes(writer.data)
