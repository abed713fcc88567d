"""The thin client's public interface: `connect`, `Client` and `Cache`.

    with connect(ConnectOptions(endpoints=(Endpoint("db1"),))) as client:
        cache = client.cache("MNIST")
        cache.size()

Blocking and thread-safe. SQL is in `client.sql`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ignite_tf_magic.client.cache_scan import WHOLE_CACHE, Baseline, CacheScan
from ignite_tf_magic.client.owner_query import RowQuery
from ignite_tf_magic.client.page_sizes import PageSizes, PartitionStats
from ignite_tf_magic.client.router import Node, Router, wait_for
from ignite_tf_magic.client.table_names import cache_called, list_tables, near_names
from ignite_tf_magic.client.transaction import Transaction, begin
from ignite_tf_magic.client.type_registry import TypeRegistry
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import CacheNotFound, ConnectionFailed, IgniteTfError, ServerError
from ignite_tf_magic.protocol import key_value, messages, metrics
from ignite_tf_magic.protocol.affinity import PartitionMap, TopologyVersion
from ignite_tf_magic.protocol.messages import CacheConfig, Request
from ignite_tf_magic.protocol.ops import CacheMode, Concurrency, Isolation, Status
from ignite_tf_magic.settings.options import ConnectOptions

T = TypeVar("T")
_PARTITION_MAP_TIMEOUT_S = 30.0
_JOIN_TIMEOUT_S = 30.0


def connect(options: ConnectOptions) -> Client:
    """Connect to a cluster. Close the client, or use it as a context manager.

    Raises:
        ConnectionFailed: No node answers; the message names each endpoint tried and why it failed.
        AuthenticationError: User name or password were refused.
    """
    client = Client(Router(options))
    try:
        client.nodes()
    except BaseException:
        client.close()
        raise
    return client


class Client(Closing):
    """A client of one cluster."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.types = TypeRegistry(router)

    def close(self) -> None:
        """Close the control connection and idle ones. Running scans have their own connections."""
        self._router.close()

    @property
    def router(self) -> Router:
        """The router, which connects to the nodes."""
        return self._router

    def nodes(self) -> tuple[Node, ...]:
        """Ask the cluster for the server nodes that accept thin clients."""
        return self._router.nodes()

    def heartbeat(self) -> TopologyVersion | None:
        """Send a heartbeat to a node and return the newest topology version it has reported.

        Return None if no node has reported a version. This is the cheapest way to notice that nodes or caches came or
        went since the client connected.
        """
        return self._router.heartbeat()

    def is_active(self) -> bool:
        """Return whether the cluster is active. A cluster with persistence starts inactive."""
        return self._router.call(messages.cluster_state(), messages.parse_int8) != 0

    def set_active(self, active: bool) -> None:
        """Activate or deactivate the cluster."""
        self._router.call(messages.change_cluster_state(int(active)), messages.parse_nothing)

    def cache_names(self) -> list[str]:
        """Return the names of all caches, sorted."""
        return sorted(self._router.call(messages.cache_names(), messages.parse_names))

    def create_cache(self, config: CacheConfig) -> Cache:
        """Create a cache.

        Raises:
            ServerError: The cache already exists, or the configuration is invalid.
            ConnectionFailed: The node that answers did not join its cluster in time.
        """
        self._await_joined()
        self._router.call(messages.create_cache(config, exist_ok=False), messages.parse_nothing, repeat=False)
        return Cache(self, config.name)

    def get_or_create_cache(self, config: CacheConfig) -> Cache:
        """Return the cache of that name, whatever its configuration. Create it if it does not exist.

        Raises:
            ConnectionFailed: The node that answers did not join its cluster in time.
        """
        self._await_joined()
        self._router.call(messages.create_cache(config, exist_ok=True), messages.parse_nothing)
        return Cache(self, config.name)

    def _await_joined(self) -> None:
        """Wait until the node has joined its cluster. A node that creates a cache before that halts itself."""

        def place() -> bool | None:
            version = self.heartbeat()
            return True if version is None or version.major > 0 else None

        if wait_for(place, _JOIN_TIMEOUT_S) is None:
            raise ConnectionFailed(
                f"an Ignite node answers but has not joined its cluster for {_JOIN_TIMEOUT_S:g} s; look at its log"
            )

    def destroy_cache(self, name: str) -> None:
        """Destroy a cache with all its rows.

        Raises:
            CacheNotFound: No cache has that name.
        """
        self.cache_call(
            name, messages.destroy_cache(messages.cache_id(name)), messages.parse_nothing, repeat=False
        )

    def cache(self, name: str) -> Cache:
        """Return an existing cache by its own name.

        Raises:
            CacheNotFound: No cache has that name. The error lists similar names, and the caches of tables with similar
                names.
        """
        names = self.cache_names()
        if name not in names:
            near = near_names(name, names, list_tables(self._router), as_tables=False)
            raise CacheNotFound(name, near, len(names))
        return Cache(self, name)

    def find_cache(self, name: str) -> Cache:
        """Return an existing cache by its own name or, failing that, by the name of its SQL table.

        A table name is written as in a SQL statement. Use this method for names that a person has typed.

        Raises:
            CacheNotFound: No cache and no table has that name. The error lists similar names of both.
            CacheNameError: Several caches have tables of that name.
        """
        names = self.cache_names()
        if name in names:
            return Cache(self, name)
        tables = list_tables(self._router)
        found = cache_called(name, tables)
        if found is None:
            raise CacheNotFound(name, near_names(name, names, tables, as_tables=True), len(names))
        return Cache(self, found)

    def transaction(
        self,
        concurrency: Concurrency = Concurrency.PESSIMISTIC,
        isolation: Isolation = Isolation.REPEATABLE_READ,
        timeout_s: float = 10.0,
    ) -> Transaction:
        """Begin a transaction on its own connection.

            with client.transaction() as transaction:
                cache = client.cache("ACCOUNTS").within(transaction)
                cache.put("a", cache.get("a") - 1)

        While a transaction holds locks, do not wait for a request outside the transaction. If somebody creates a cache
        or a node joins meanwhile, the cluster waits for the locks and the request waits for the cluster, until
        `timeout_s` is over.

        Args:
            concurrency: Whether rows are locked when they are touched, or checked at commit.
            isolation: Which changes by others the transaction sees.
            timeout_s: The node rolls the transaction back after this time.

        Raises:
            ConnectionFailed: No node answers.
        """
        return begin(self._router, concurrency, isolation, timeout_s)

    def cache_call(
        self, name: str, request: Request, parse: Callable[[memoryview], T], *, repeat: bool = True
    ) -> T:
        """Send a request about a cache to any node. A missing cache raises CacheNotFound."""
        try:
            return self._router.call(request, parse, repeat=repeat)
        except ServerError as error:
            if error.status == Status.CACHE_DOES_NOT_EXIST:
                names = self.cache_names()
                raise CacheNotFound(name, near_names(name, names, (), as_tables=False), len(names)) from None
            raise


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache of a cluster. Its rows are read and written directly, or in a transaction; see `within`."""

    client: Client
    name: str
    transaction: Transaction | None = None

    def within(self, transaction: Transaction) -> Cache:
        """Return the same cache, with its rows read and written in a transaction."""
        return replace(self, transaction=transaction)

    @property
    def cache_id(self) -> int:
        """The number that identifies the cache in requests."""
        return messages.cache_id(self.name)

    def _ask(self, request: Request, parse: Callable[[memoryview], T]) -> T:
        return self.client.cache_call(self.name, request, parse)

    def _call(self, request: Request, parse: Callable[[memoryview], T], *, repeat: bool = True) -> T:
        if self.transaction:
            return self.transaction.call(request, parse)
        return self.client.cache_call(self.name, request, parse, repeat=repeat)

    def size(self) -> int:
        """Return the number of rows in the whole cluster, without backup copies."""
        return self._ask(messages.size(self.cache_id), messages.parse_int64)

    def is_on_disk(self) -> bool:
        """Return whether nodes keep the rows on disk; False if the cluster does not report it, as without SQL."""
        try:
            region = self._ask(metrics.region_of(self.name), metrics.parse_region_of)
            return region in self._ask(metrics.regions_on_disk(), metrics.parse_regions_on_disk)
        except ServerError:
            return False

    def get(self, key: Any) -> Any:
        """Return the value of a key, or None if the key does not exist."""
        self._announce(key)
        return self._call(
            key_value.get(self.cache_id, key),
            lambda payload: self.client.types.read(partial(key_value.parse_value, payload)),
        )

    def get_all(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return the values of those keys that exist. Keys are numbers, strings or UUIDs."""
        wanted = list(keys)
        self._announce(*wanted)
        return dict(
            self._call(
                key_value.get_all(self.cache_id, wanted),
                lambda payload: self.client.types.read(partial(key_value.parse_rows, payload)),
            )
        )

    def contains(self, key: Any) -> bool:
        """Return whether a key exists."""
        self._announce(key)
        return self._call(key_value.contains(self.cache_id, key), messages.parse_bool)

    def contains_all(self, keys: Iterable[Any]) -> bool:
        """Return whether all the keys exist. Sends one request."""
        wanted = list(keys)
        self._announce(*wanted)
        return self._call(key_value.contains_all(self.cache_id, wanted), messages.parse_bool)

    def put(self, key: Any, value: Any, ttl_s: float | None = None) -> None:
        """Write one row. It replaces a row with the same key.

        Args:
            key: The key.
            value: The value.
            ttl_s: Seconds after which the server removes the row, counted from its last write. None keeps the row.
                Not supported within a transaction.
        """
        self._announce(key, value)
        request = key_value.put(self.cache_id, key, value)
        if ttl_s is not None:
            request = key_value.expiring(request, round(ttl_s * 1000))
        self._call(request, messages.parse_nothing)

    def put_all(self, rows: Mapping[Any, Any]) -> None:
        """Write rows in one request. In an ATOMIC cache a failure may leave some of them written."""
        for key, value in rows.items():
            self._announce(key, value)
        self._call(key_value.put_all(self.cache_id, rows), messages.parse_nothing)

    def put_if_absent(self, key: Any, value: Any) -> bool:
        """Write one row unless its key exists. Return whether it was written.

        Raises:
            ConnectionLost: The row may or may not have been written.
        """
        self._announce(key, value)
        request = key_value.put_if_absent(self.cache_id, key, value)
        return self._call(request, messages.parse_bool, repeat=False)

    def replace_if_equals(self, key: Any, old: Any, new: Any) -> bool:
        """Replace a row's value if it equals `old` when encoded. Return whether it was replaced.

        Raises:
            ConnectionLost: The row may or may not have been written.
        """
        self._announce(key, old, new)
        request = key_value.replace_if_equals(self.cache_id, key, old, new)
        return self._call(request, messages.parse_bool, repeat=False)

    def remove(self, key: Any) -> bool:
        """Remove a row. Return whether it existed."""
        self._announce(key)
        return self._call(key_value.remove(self.cache_id, key), messages.parse_bool)

    def remove_all(self, keys: Iterable[Any]) -> None:
        """Remove rows in one request. Keys that do not exist are ignored."""
        unwanted = list(keys)
        self._announce(*unwanted)
        self._call(key_value.remove_all(self.cache_id, unwanted), messages.parse_nothing)

    def _announce(self, *values: Any) -> None:
        """Register the types of binary objects. A key to look up needs it too: a field may decide its partition."""
        for value in values:
            self.client.types.announce(value)

    def config(self) -> CacheConfig:
        """Read the cache's configuration."""
        return self._ask(messages.cache_configuration(self.cache_id), messages.parse_configuration)

    def partition_map(self) -> PartitionMap:
        """Return the node of the primary copy of each partition.

        A node that is still busy with a topology change does not list the cache. It is asked again for up to 30 s.

        Raises:
            CacheNotFound: The cache does not exist.
        """
        found = self._ask_partition_map()
        if found is None:
            self.client.cache(self.name)
            found = wait_for(self._ask_partition_map, _PARTITION_MAP_TIMEOUT_S)
        if found is None:
            raise IgniteTfError(
                f"the cluster sent no partition map of cache {self.name!r} for "
                f"{_PARTITION_MAP_TIMEOUT_S:g} s; a topology change does not finish. Look at the nodes' logs"
            )
        return found

    def _ask_partition_map(self) -> PartitionMap | None:
        request = messages.partitions(self.cache_id)
        return self._ask(request, lambda payload: messages.parse_partitions(payload, self.cache_id))

    def baseline(self) -> Baseline:
        """Record owners, nodes and size as they are now. A later reader compares with them to detect lost rows."""
        partition_map = self.partition_map()
        nodes = [node.node_id for node in self.client.nodes()]
        config = self.config()
        owners = partition_map.primary_of() if partition_map.partitioned else {WHOLE_CACHE: nodes[0]}
        backups = len(nodes) - 1 if config.mode is CacheMode.REPLICATED else config.backups
        return Baseline(self.name, owners, frozenset(nodes), backups, self.size())

    def scan(
        self,
        partitions: Iterable[int],
        sizes: PageSizes,
        baseline: Baseline,
        query: RowQuery | None = None,
    ) -> CacheScan:
        """Return a scan of partitions in this order, for one thread. See `CacheScan`."""
        return CacheScan(self.client.router, self, partitions, sizes, baseline, query)

    def partition_stats(self, partitions: Iterable[int] | None = None) -> dict[int, PartitionStats]:
        """Return the row count and the largest row of each partition. Reads from all owners in parallel."""
        baseline, sizes = self.baseline(), PageSizes()
        wanted = set(baseline.owners) if partitions is None else set(partitions)
        groups: dict[uuid.UUID, list[int]] = {}
        for partition in sorted(wanted):
            groups.setdefault(baseline.owners[partition], []).append(partition)
        scans = [self.scan(group, sizes, baseline) for group in groups.values()]
        try:
            with ThreadPoolExecutor(max(len(scans), 1), "count-rows") as pool:
                list(pool.map(_drain, scans))
        finally:
            for scan in scans:
                scan.close()
        known = sizes.known()
        return {partition: known[partition] for partition in sorted(wanted)}


def _drain(scan: CacheScan) -> None:
    for _ in scan.pages():
        pass
