"""Options of a dataset: the constructor's arguments, overridden by IGNITE_DATASET_* variables.

The variables override the arguments, as they did in tensorflow-io. One script therefore runs on every worker, and each
worker's environment names the part that it reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.page_sizes import MAX_PAGE_ROWS
from ignite_tf_magic.dataset.partition_ranges import parse_partitions
from ignite_tf_magic.dataset.share_counts import SharesToCount
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.protocol.field_names import Nulls
from ignite_tf_magic.settings.options import (
    DEFAULT_PORT,
    ConnectOptions,
    Endpoint,
    configured_cluster,
    embedded_endpoints,
    environment,
    read_credentials,
    tls_options,
)

_VARIABLES = (
    "cache_name",
    "host",
    "port",
    "local",
    "part",
    "page_size",
    "username",
    "password",
    "certfile",
    "keyfile",
    "cert_password",
    "credentials_file",
    "assigned_cache",
    "assignment_file",
    "allow_partial",
)
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class AssignedShard:
    """A worker's shard of a cache, as its launcher assigned it.

    Attributes:
        worker: This worker's number.
        rows_by_worker: Rows of every worker's shard.
        to_count: How to count the rows, if the launcher has not. `rows_by_worker` then holds the launcher's estimates.
    """

    worker: int
    rows_by_worker: tuple[int, ...]
    to_count: SharesToCount | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything that a reading needs.

    Attributes:
        partitions: The partitions to read, None for all.
        local: Read only partitions whose primary copy is on the node of the first endpoint.
        page_rows: Upper limit for the rows of a scan page.
        assignment: Set if a launcher assigned the partitions.
        is_in_run: Whether a launcher has assigned partitions of any cache.
        allow_partial: Read what is left of a cache that has lost rows.
        is_growing: Whether rows may still be loaded into it.
        as_text: Fields to read as text.
        where: An SQL condition over the columns of the cache's table.
        where_args: The values of each `?` in it.
    """

    cache: str
    connect: ConnectOptions
    partitions: tuple[int, ...] | None = None
    local: bool = False
    page_rows: int = MAX_PAGE_ROWS
    assignment: AssignedShard | None = None
    is_in_run: bool = False
    allow_partial: bool = False
    fields: tuple[str, ...] | None = None
    fill: Mapping[str, object] = field(default_factory=dict)
    variable: tuple[str, ...] = ()
    nulls: Nulls = None
    as_text: tuple[str, ...] = ()
    is_growing: bool = False
    where: str | None = None
    where_args: tuple[object, ...] = ()


def parse_nulls(nulls: str | Iterable[str] | None) -> Nulls:
    """Parse which fields get an extra boolean column that marks their nulls; see `LayoutFinder`.

    Raises:
        ConfigError: The value is neither a known choice nor a list of field names.
    """
    if nulls is None or nulls in ("mask", "error"):
        return cast(Nulls, nulls)
    names = None if isinstance(nulls, str) else frozenset(nulls)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"nulls={nulls!r}: write 'mask', 'error', or a list with names of fields")
    return names


def _names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    found = () if isinstance(names, str) else tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{option}={names!r}: write a list with names of fields")
    return found


def read_options(
    cache: str,
    *,
    host: str | None = None,
    port: int | None = None,
    local: bool = False,
    part: int | str | Iterable[int] | None = None,
    page_size: int | None = None,
    username: str | None = None,
    password: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    cert_password: str | None = None,
    assigned: bool = True,
    allow_partial: bool = False,
    fields: Iterable[str] | None = None,
    fill: Mapping[str, object] | None = None,
    variable: Iterable[str] = (),
    nulls: str | Iterable[str] | None = None,
    as_text: Iterable[str] = (),
    where: str | None = None,
    where_args: Iterable[object] = (),
    env: Mapping[str, str] | None = None,
) -> ReadOptions:
    """Merge a constructor's arguments with the environment.

    If `cache` is not the assigned cache, it may be the name of that cache's SQL table: the cluster is asked.

    Raises:
        ConfigError: A value is unusable; the message names the variable or the argument.
        CacheNotFound: No such cache.
        CacheNameError: Several caches have SQL tables of that name.
        ConnectionFailed, AuthenticationError: The cluster to ask cannot be reached.
    """
    found = environment("IGNITE_DATASET_", _VARIABLES, os.environ if env is None else env)
    secrets = read_credentials(Path(found["credentials_file"])) if "credentials_file" in found else {}
    given = {
        "username": username,
        "password": password,
        "certfile": certfile,
        "keyfile": keyfile,
        "cert_password": cert_password,
    }
    merged = {**secrets, **{name: found.get(name) or secrets.get(name) or given[name] for name in given}}
    reached = _connect_options(found, host, port, merged)
    cache, is_assigned = found.get("cache_name", cache), assigned
    if assigned and found.get("assigned_cache", cache) != cache:
        cache = _cache_meant(cache, reached)
        is_assigned = found["assigned_cache"] == cache
    options = ReadOptions(
        cache,
        reached,
        parse_partitions(found.get("part", part) if is_assigned else part),
        _flag("IGNITE_DATASET_LOCAL", found["local"]) if "local" in found else local,
        _positive("page_size", found.get("page_size", page_size), MAX_PAGE_ROWS),
    )
    if "allow_partial" in found:
        allow_partial = allow_partial or _flag("IGNITE_DATASET_ALLOW_PARTIAL", found["allow_partial"])
    options = replace(
        options,
        allow_partial=allow_partial,
        fields=None if fields is None else tuple(fields),
        fill=dict(fill or {}),
        variable=tuple(variable),
        nulls=parse_nulls(nulls),
        as_text=_names("as_text", as_text),
        where=where,
        where_args=tuple(where_args),
        is_in_run="assignment_file" in found,
    )
    if is_assigned and "assignment_file" in found:
        return replace(options, assignment=_read_assignment(Path(found["assignment_file"]), cache))
    return options


def _cache_meant(name: str, options: ConnectOptions) -> str:
    with connect(options) as client:
        return client.find_cache(name).name


def _connect_options(
    given: Mapping[str, str], host: str | None, port: int | None, secrets: Mapping[str, str | None]
) -> ConnectOptions:
    base = None
    if "host" in given or "port" in given or host or port:
        number = _positive("port", given.get("port", port), DEFAULT_PORT)
        endpoints: tuple[Endpoint, ...] = (Endpoint(given.get("host") or host or "localhost", number),)
    else:
        base = configured_cluster()
        endpoints = base.endpoints if base else embedded_endpoints() or (Endpoint("localhost"),)
    return ConnectOptions(
        endpoints,
        secrets["username"] or (base.username if base else None),
        secrets["password"] or (base.password if base else None),
        tls_options(secrets) or (base.tls if base else None),
    )


def _flag(name: str, text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ConfigError(f"{name}={text!r}: write true or false")


def _positive(name: str, value: str | int | None, default: int) -> int:
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name}={value!r}: a number from 1 up is needed")
    return number


def _read_assignment(path: Path, cache: str) -> AssignedShard | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["cache"] != cache:
            return None
        worker, shares = int(record["worker"]), tuple(map(str, record.get("shares", ())))
        to_count = SharesToCount(worker, shares, str(record["run"])) if shares else None
        return AssignedShard(worker, tuple(map(int, record["rows_by_worker"])), to_count)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"cannot read the assignment in {path}: {error!r}") from error
