"""Reads a node's metrics by SQL from its system views.

Source: Ignite documentation, "System Views", METRICS.
"""

from __future__ import annotations

from collections.abc import Mapping

from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.messages import Request

_PREFIX = "io.dataregion."
_OF_REGIONS = (
    "MaxSize",
    "TotalUsedPages",
    "TotalAllocatedSize",
    "TotalAllocatedPages",
    "CheckpointBufferSize",
)
_STATEMENT = """
SELECT NAME, "VALUE" FROM SYS.METRICS
WHERE NAME LIKE ? OR NAME LIKE ? OR NAME LIKE ? OR NAME LIKE ? OR NAME LIKE ?
"""
_ONE = 'SELECT "VALUE" FROM SYS.METRICS WHERE NAME = ?'
_REGION = "SELECT DATA_REGION_NAME FROM SYS.CACHES WHERE CACHE_NAME = ?"
_CONFIGURED = 'SELECT NAME, "VALUE" FROM SYS.CONFIGURATION WHERE NAME LIKE ?'
_PERSISTENT = "PersistenceEnabled"
_MAX_ROWS = 1000
_TIMEOUT_MS = 5000
# Ignite's own regions, for its internal caches, metadata and snapshots.
_SYSTEM_REGIONS = {"sysMemPlc", "volatileDsMemPlc", "metastoreMemPlc", "TxLog"}


def data_regions() -> Request:
    """Build a request for the metrics of a node's data regions; `parse_regions` reads the answer."""
    return sql.execute(
        _STATEMENT, [f"{_PREFIX}%.{name}" for name in _OF_REGIONS], _MAX_ROWS, timeout_ms=_TIMEOUT_MS
    )


def parse_regions(payload: memoryview) -> dict[str, dict[str, int]]:
    """Read the answer of `data_regions`: region -> metric -> value, without Ignite's own regions."""
    regions: dict[str, dict[str, int]] = {}
    for name, value in sql.parse_result(payload).rows:
        region, _, metric = str(name).removeprefix(_PREFIX).rpartition(".")
        if region not in _SYSTEM_REGIONS and str(value).isdecimal():
            regions.setdefault(region, {})[metric] = int(value)
    return regions


def parse_used_bytes(payload: memoryview) -> int:
    """Read the answer of `data_regions`: the bytes used in all regions; 0 if the node reports none."""
    return sum(map(used_bytes, parse_regions(payload).values()))


def primary_rows(cache_name: str) -> Request:
    """Build a request for the number of a cache's rows whose primary copy is on the node.

    `parse_primary_rows` reads the answer.
    """
    name = f"cache.{cache_name}.OffHeapPrimaryEntriesCount"
    return sql.execute(_ONE, [name], 1, timeout_ms=_TIMEOUT_MS)


def parse_primary_rows(payload: memoryview) -> int | None:
    """Read the answer of `primary_rows`; None if the node has no such metric."""
    rows = sql.parse_result(payload).rows
    return int(rows[0][0]) if rows else None


def regions_on_disk() -> Request:
    """Build a request for the data regions that a node keeps on disk; `parse_regions_on_disk` reads the answer."""
    return sql.execute(_CONFIGURED, ["DataStorageConfiguration.%"], _MAX_ROWS, timeout_ms=_TIMEOUT_MS)


def parse_regions_on_disk(payload: memoryview) -> set[str | None]:
    """Read the answer of `regions_on_disk`: names of regions. The default region appears by name and as None."""
    found = dict(sql.parse_result(payload).rows)
    on_disk = [
        name.removesuffix(_PERSISTENT)
        for name, value in found.items()
        if name.endswith(_PERSISTENT) and value == "true"
    ]
    names = {found.get(f"{prefix}Name") for prefix in on_disk}
    return names | {None for prefix in on_disk if "Default" in prefix}


def region_of(cache_name: str) -> Request:
    """Build a request for the data region of a cache; `parse_region_of` reads the answer."""
    return sql.execute(_REGION, [cache_name], 1, timeout_ms=_TIMEOUT_MS)


def parse_region_of(payload: memoryview) -> str | None:
    """Read the answer of `region_of`: the name of the region; None is the default region."""
    rows = sql.parse_result(payload).rows
    return rows[0][0] if rows else None


def used_bytes(region: Mapping[str, int]) -> int:
    """Return the bytes that rows and indexes use in a region: on disk if it is kept there, else in memory."""
    allocated = region.get("TotalAllocatedSize", 0)
    if region.get("CheckpointBufferSize"):
        return allocated
    page_bytes = allocated / max(region.get("TotalAllocatedPages", 0), 1)
    return round(region.get("TotalUsedPages", 0) * page_bytes)
