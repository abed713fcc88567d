"""The names of a cluster's caches, tables and files, for listings and completion. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ignite_tf_magic.client.cache_facts import NOTES_PREFIX
from ignite_tf_magic.client.client import Cache, Client, connect
from ignite_tf_magic.client.packed_entries import holds_packed_rows, num_packed_rows
from ignite_tf_magic.client.table_names import list_tables
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.addresses import name_of_file_system
from ignite_tf_magic.igfs.layout import DirectoryNode
from ignite_tf_magic.igfs.store import caches_of_file_systems
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.serialization.sql_text import quoted_name
from ignite_tf_magic.session.known_runs import cluster_that_runs
from ignite_tf_magic.session.resolve import configuration
from ignite_tf_magic.settings.options import ConnectOptions

T = TypeVar("T")
CONNECT_S = 2.0  # short: a listing must not wait long for a cluster that does not answer
_COLUMNS = "SELECT SCHEMA_NAME, TABLE_NAME, COLUMN_NAME FROM SYS.TABLE_COLUMNS"
_MOST_COLUMNS = 100_000


def num_rows(cache: Cache, config: CacheConfig) -> int:
    """Return the number of a cache's rows, including those in packed entries."""
    entries = cache.size()
    if holds_packed_rows(config):
        with suppress(IgniteTfError):  # for example, while they are being written
            return num_packed_rows(cache, entries)
    return entries


def without_own(names: Iterable[str]) -> list[str]:
    """Remove the caches of this package from names: its notes, the registry of runs, file systems."""
    listed = list(names)
    of_files = caches_of_file_systems(listed)
    return [name for name in listed if not name.startswith(NOTES_PREFIX) and name not in of_files]


def cache_names_of(options: ConnectOptions) -> tuple[str, ...]:
    """List the names of a cluster's caches, sorted, without those of this package.

    Raises:
        ConnectionFailed: No node answers within two seconds.
    """
    with connect(replace(options, timeout_s=CONNECT_S)) as client:
        return tuple(sorted(without_own(client.cache_names())))


def cache_names() -> list[str]:
    """List cache names of the configured cluster, or of the embedded one if it runs, for completion.

    Also contains the names of SQL tables that differ from the cache's name and need no quotes. The list is empty if
    no cluster answers within two seconds.
    """

    def ask(client: Client, _: ConnectOptions) -> list[str]:
        own = without_own(client.cache_names())
        tables: list[str] = []
        with suppress(IgniteTfError):  # the node has answered, but may be slow with its first statement
            tables = [str(table) for table in list_tables(client.router)]
        return sorted({*own, *(name for name in tables if '"' not in name)})

    return _answer(ask, [])


def columns_of_tables() -> dict[str, tuple[str, ...]]:
    """Return the columns of each SQL table, named as in a statement, for completion; errors as in `cache_names`."""

    def ask(client: Client, _: ConnectOptions) -> dict[str, tuple[str, ...]]:
        names = {(table.schema, table.table): str(table) for table in list_tables(client.router)}
        found: dict[str, list[str]] = {name: [] for name in names.values()}
        rows = client.router.call(
            sql.execute(_COLUMNS, (), _MOST_COLUMNS), lambda payload: sql.parse_result(payload).rows
        )
        for schema, table, column in rows:
            if (schema, table) in names:
                found[names[schema, table]].append(quoted_name(str(column)))
        return {name: tuple(columns) for name, columns in found.items()}

    return _answer(ask, {})


def paths_in_directory(path: str) -> list[str]:
    """List an igfs directory, with a slash after names of directories, for completion; errors as in `cache_names`."""

    def ask(_: Client, options: ConnectOptions) -> list[str]:
        directory = paths.parse(path)
        with Volume(lambda: options, name_of_file_system()) as volume:
            return [
                paths.render((*directory, name)) + "/" * isinstance(node, DirectoryNode)
                for page in volume.entries(directory)
                for name, node in page
            ]

    nothing: list[str] = []
    return sorted(_answer(ask, nothing))


def _answer(ask: Callable[[Client, ConnectOptions], T], otherwise: T) -> T:
    """Return the answer of the running cluster, or `otherwise` if there is none or it does not answer soon."""
    try:
        options = cluster_that_runs(configuration(None, None))
        if options is None:
            return otherwise
        options = replace(options, timeout_s=CONNECT_S)
        with connect(options) as client:
            return ask(client, options)
    except (IgniteTfError, OSError):
        return otherwise
