"""Refuses writes before an Ignite node runs out of memory.

A node that runs out of memory dies, and others follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ignite_tf_magic.client.regions import RegionUse, region_use
from ignite_tf_magic.errors import NoSpace
from ignite_tf_magic.igfs.store import ProcessLock, Store

MAX_SHARE = 0.9
_TRUST_S = 5.0
# Other clients write meanwhile: only this share of the free memory may be written before asking again.
_SPENT_SHARE = 0.25
# Replaced files are freed once their readers have renewed their leases; if memory is full, writing waits that long.
_RECLAIM_S = 20.0
_PAUSE_S = 0.5


class Quota:
    """Limits how much may still be written. Thread-safe.

    Args:
        store: The file system whose nodes are asked.
        reclaim: Removes garbage; returns how many of its records cannot be removed yet.
        max_share: How full a node may become, from 0 to 1.
    """

    def __init__(self, store: Store, reclaim: Callable[[], int], max_share: float = MAX_SHARE) -> None:
        self._store = store
        self._reclaim = reclaim
        self._max_share = max_share
        self._lock = ProcessLock()
        self._allowed_bytes = 0.0
        self._until = 0.0

    def take(self, num_bytes: int) -> None:
        """Claim room for bytes before writing them; asks the nodes now and then.

        Raises:
            NoSpace: A node's memory is full, except for a reserve that the node itself needs.
        """
        with self._lock:
            if num_bytes > self._allowed_bytes or time.monotonic() > self._until:
                self._ask(num_bytes)
            self._allowed_bytes -= num_bytes

    def _ask(self, num_bytes: int) -> None:
        deadline = time.monotonic() + _RECLAIM_S
        while (use := self._fullest()) is not None and self._free_bytes(use) < num_bytes:
            if not self._reclaim() and self._free_bytes(self._fullest() or use) < num_bytes:
                raise _full(use, self._max_share)
            if time.monotonic() > deadline:
                raise _full(use, self._max_share)
            time.sleep(_PAUSE_S)
        self._until = time.monotonic() + _TRUST_S
        free = self._free_bytes(use) if use else float("inf")
        self._allowed_bytes = max(free * _SPENT_SHARE, num_bytes)

    def _fullest(self) -> RegionUse | None:
        return max(region_use(self._store.client()), key=lambda use: use.share, default=None)

    def _free_bytes(self, use: RegionUse) -> float:
        return use.max_bytes * self._max_share - use.used_bytes


def _full(use: RegionUse, max_share: float) -> NoSpace:
    mib = 1024 * 1024
    where = use.node.endpoints[0] if use.node.endpoints else use.node.node_id
    return NoSpace(
        f"the Ignite node at {where} has filled {use.used_bytes / mib:,.0f} of {use.max_bytes / mib:,.0f} MiB of its "
        f"memory for data, and igfs leaves {1 - max_share:.0%} free. Remove files (ignite-tf fs du, rm; ignite-tf "
        "prune) or caches, or give the nodes a larger data region"
    )
