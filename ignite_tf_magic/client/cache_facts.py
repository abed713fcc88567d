"""Stores facts about caches outside their rows, in one small replicated cache with one JSON text per cache.

    {"cache_id": ..., "load": {"state": "loading", "rows": ..., "expected_rows": ..., "started_at": ..., ...}}

A load writes its mark before its first row, at intervals while it runs, and after its last row. So a killed load can be
distinguished from a complete one, and can be resumed. Facts change by compare-and-set and keep keys that this version
does not know. Reading does not create the cache.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    IgniteTfError,
    LoadIncomplete,
    ServerError,
)
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.ops import AtomicityMode, CacheMode, Status

# Prefix of caches that store this package's own data. No cache with user data has it.
NOTES_PREFIX = "ignite-tf-"
CACHE = f"{NOTES_PREFIX}caches"
PATIENCE_S = 20.0
_WAYS_ON = {  # how an unfinished load writes its rows -> what the user can do
    "new": "or load again with --replace",
    "append": "remove its rows (ignite-tf load {0} --undo), or keep them (ignite-tf load {0} --accept)",
    "upsert": "or keep its rows (ignite-tf load {0} --accept); it replaced rows, so it cannot be undone (--undo)",
}
_PERMANENT = {Status.SECURITY_VIOLATION, Status.AUTH_FAILED}

Facts = Mapping[str, Any]


class LoadState(str, Enum):
    """The state of a load."""

    LOADING = "loading"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class LoadMark:
    """The stored facts about the load that made a cache.

    Attributes:
        state: "loading" from before the first row until after the last.
        rows: Number of rows certainly written, counted from the first of the source; all rows once it is complete.
        expected_rows: Number of rows that the cache will have.
        started_at: Seconds since 1970 by the loader's clock.
        by: The loader: its host and process id.
        source: Identifies the rows of the source.
        way: How rows are written: "new", "append", or "upsert".
        first_key: Number of the first row, if rows are numbered.
    """

    state: LoadState
    rows: int
    expected_rows: int
    started_at: float
    by: str
    source: str = ""
    way: str = "new"
    first_key: int = 0


def read_facts(client: Client, cache: str) -> Facts:
    """Return the facts of a cache; empty if none are stored.

    Raises:
        ConnectionFailed: No node answers.
    """
    try:
        return _parse(Cache(client, CACHE).get(cache))
    except CacheNotFound:
        return {}


def update_facts(client: Client, cache: str, change: Callable[[Facts], Facts | None]) -> None:
    """Change the facts of a cache by compare-and-set. Keeps trying while nodes join and leave.

    Args:
        client: A client of the cluster.
        cache: Name of the cache.
        change: Returns the new facts for the old ones, or None to remove them. May be called several times, and a
            change may be applied twice.

    Raises:
        DeadlineExceeded: The facts could not be written for 20 s.
        ServerError: This user may not write them.
    """
    failure: IgniteTfError | None = None

    def attempt() -> bool | None:
        nonlocal failure
        try:
            return _compare_and_set(_created(client), cache, change) or None
        except ServerError as error:
            if error.status in _PERMANENT:
                raise
            failure = error
        except (CacheNotFound, ConnectionLost, ConnectionFailed) as error:
            failure = error
        return None

    if wait_for(attempt, PATIENCE_S) is None:
        raise DeadlineExceeded(
            f"the record of cache {cache!r} could not be written to cache {CACHE} for {PATIENCE_S:g} s; "
            f"the last attempt: {failure or 'other processes keep changing it'}. Look at the nodes' logs, then repeat"
        )


def mark_loading(client: Client, cache: str, expected_rows: int, **more: Any) -> LoadMark:
    """Record that a load into a new cache begins. Facts of an earlier cache of that name are dropped.

    Args:
        client: A client of the cluster.
        cache: The cache's name.
        expected_rows: Number of rows that the cache will have.
        **more: Other attributes of the mark: `rows`, `source`.
    """
    mark = new_mark(expected_rows, **more)
    update_facts(client, cache, lambda _: with_load({}, cache, mark))
    return mark


def new_mark(expected_rows: int, *, rows: int = 0, **more: Any) -> LoadMark:
    """Return the mark of a load that this process begins now."""
    by = f"{socket.gethostname()}:{os.getpid()}"
    return LoadMark(LoadState.LOADING, rows, expected_rows, time.time(), by, **more)


def change_mark(client: Client, cache: str, old: LoadMark | None, new: LoadMark) -> None:
    """Record the progress of a load, unless another load has changed the mark meanwhile.

    Raises:
        LoadIncomplete: Another load has begun.
        IgniteTfError: Another load has begun and ended.
    """
    taken = False

    def change(facts: Facts) -> Facts:
        nonlocal taken
        taken = load_mark(facts) not in (old, new)
        return facts if taken else with_load(facts, cache, new)

    update_facts(client, cache, change)
    if taken:
        check_complete(client, cache)
        raise IgniteTfError(
            f"another load into cache {cache!r} began and ended during this one; check its rows, and load again"
        )


def mark_complete(client: Client, cache: str, mark: LoadMark, rows: int) -> None:
    """Record that a load has written all its rows, unless another load has begun since."""
    done = replace(mark, state=LoadState.COMPLETE, rows=rows)

    def change(facts: Facts) -> Facts:
        return with_load(facts, cache, done) if load_mark(facts) in (mark, done) else facts

    update_facts(client, cache, change)


def forget(client: Client, cache: str) -> None:
    """Remove the facts of a cache that no longer exists."""
    if read_facts(client, cache):
        update_facts(client, cache, lambda _: None)


def load_mark(facts: Facts) -> LoadMark | None:
    """Return the mark of the cache's load; None if no load made the cache."""
    load = facts.get("load")
    try:
        return LoadMark(**{**load, "state": LoadState(load["state"])}) if isinstance(load, dict) else None
    except (TypeError, ValueError, KeyError):  # written by a later version
        return None


def check_complete(client: Client, cache: str, facts: Facts | None = None) -> None:
    """Refuse a cache whose load is incomplete.

    Args:
        client: A client of the cluster.
        cache: The cache's name.
        facts: The facts of the cache, if already read.

    Raises:
        LoadIncomplete: The load failed or is still running; the error states how many of how many rows exist.
    """
    mark = load_mark(read_facts(client, cache) if facts is None else facts)
    if mark is not None and mark.state is not LoadState.COMPLETE:
        rows = Cache(client, cache).size()
        spare = spare_name(cache)
        other = load_mark(read_facts(client, spare)) if spare in client.cache_names() else None
        whole_in = spare if other and other.state is LoadState.COMPLETE else None
        began = f"{mark.by} began at {_utc(mark.started_at)}"
        ways_on = _WAYS_ON.get(mark.way, _WAYS_ON["new"]).format(cache)
        raise LoadIncomplete(cache, rows, mark.expected_rows, began, ways_on, whole_in)


def spare_name(cache: str) -> str:
    """Return the name of the cache that collects rows before they replace those of another cache."""
    return f"{cache}-loading"


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def with_load(facts: Facts, cache: str, mark: LoadMark) -> Facts:
    """Return a cache's facts with another load mark."""
    return {**facts, "cache_id": messages.cache_id(cache), "load": asdict(mark)}


def _parse(text: Any) -> dict[str, Any]:
    try:
        facts = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):  # a row of another program
        return {}
    return facts if isinstance(facts, dict) else {}


def _compare_and_set(facts: Cache, name: str, change: Callable[[Facts], Facts | None]) -> bool:
    old = facts.get(name)
    new = change(_parse(old))
    if new is None:
        return facts.remove(name) or old is None
    text = json.dumps(new, separators=(",", ":"))
    if text == old:
        return True
    return facts.put_if_absent(name, text) if old is None else facts.replace_if_equals(name, old, text)


def _created(client: Client) -> Cache:
    # Transactional: if the answer to a compare-and-set is lost, it was still applied to all copies or to none.
    return client.get_or_create_cache(
        CacheConfig(
            CACHE, mode=CacheMode.REPLICATED, atomicity=AtomicityMode.TRANSACTIONAL, read_from_backup=False
        )
    )
