"""A node's metrics, by SQL over its system view.

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
# Ignite's own, for its internal caches, metadata and snapshots.
_SYSTEM_REGIONS = {"sysMemPlc", "volatileDsMemPlc", "metastoreMemPlc", "TxLog"}


def data_regions() -> Request:
    """Ask a node for the metrics of its data regions; answer: `parse_regions`."""
    return sql.execute(
        _STATEMENT, [f"{_PREFIX}%.{name}" for name in _OF_REGIONS], _MAX_ROWS, timeout_ms=_TIMEOUT_MS
    )


def parse_regions(payload: memoryview) -> dict[str, dict[str, int]]:
    """Read the answer: region -> metric -> value, without Ignite's own regions."""
    regions: dict[str, dict[str, int]] = {}
    for name, value in sql.parse_result(payload).rows:
        region, _, metric = str(name).removeprefix(_PREFIX).rpartition(".")
        if region not in _SYSTEM_REGIONS and str(value).isdecimal():
            regions.setdefault(region, {})[metric] = int(value)
    return regions


def parse_used_bytes(payload: memoryview) -> int:
    """Read the answer of `data_regions`: the bytes taken in all of them; 0 where the node does not tell."""
    return sum(map(used_bytes, parse_regions(payload).values()))


def primary_rows(cache_name: str) -> Request:
    """Ask a node for the rows of a cache of which it has the primary copy; answer: `parse_primary_rows`."""
    name = f"cache.{cache_name}.OffHeapPrimaryEntriesCount"
    return sql.execute(_ONE, [name], 1, timeout_ms=_TIMEOUT_MS)


def parse_primary_rows(payload: memoryview) -> int | None:
    """Read the answer; None where the node has no such metric."""
    rows = sql.parse_result(payload).rows
    return int(rows[0][0]) if rows else None


def regions_on_disk() -> Request:
    """Ask a node which data regions are kept on disk; answer: `parse_regions_on_disk`."""
    return sql.execute(_CONFIGURED, ["DataStorageConfiguration.%"], _MAX_ROWS, timeout_ms=_TIMEOUT_MS)


def parse_regions_on_disk(payload: memoryview) -> set[str | None]:
    """Read the answer: their names; None is the default region, beside its name."""
    found = dict(sql.parse_result(payload).rows)
    on_disk = [
        name.removesuffix(_PERSISTENT)
        for name, value in found.items()
        if name.endswith(_PERSISTENT) and value == "true"
    ]
    names = {found.get(f"{prefix}Name") for prefix in on_disk}
    return names | {None for prefix in on_disk if "Default" in prefix}


def region_of(cache_name: str) -> Request:
    """Ask a node for the data region of a cache; answer: `parse_region_of`."""
    return sql.execute(_REGION, [cache_name], 1, timeout_ms=_TIMEOUT_MS)


def parse_region_of(payload: memoryview) -> str | None:
    """Read the answer: its name; None is the default region."""
    rows = sql.parse_result(payload).rows
    return rows[0][0] if rows else None


def used_bytes(region: Mapping[str, int]) -> int:
    """Return the bytes that rows and indexes take in a region: in memory, or on disk where it is kept there."""
    allocated = region.get("TotalAllocatedSize", 0)
    if region.get("CheckpointBufferSize"):
        return allocated
    page_bytes = allocated / max(region.get("TotalAllocatedPages", 0), 1)
    return round(region.get("TotalUsedPages", 0) * page_bytes)
