"""Checks that a cluster and a cache in it are complete, so that no run silently trains on a part of the rows.

One side of a split cluster answers like any other cluster, with the rows that it has. So the checks look for the nodes
that should be there: those that are configured, and those that were there when the cache was last counted.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ignite_tf_magic.client.cache_facts import Facts, check_complete
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE, Baseline
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.row_counts import (
    RowCount,
    counted_now,
    doubts,
    evidence_of_loss,
    last_count,
    note_count,
)
from ignite_tf_magic.errors import CacheNotFound, IgniteTfError, NodesMissing, RowsLost
from ignite_tf_magic.protocol.affinity import PartitionMap
from ignite_tf_magic.runs.hosts.host_names import is_non_identifying, plain_address
from ignite_tf_magic.runs.hosts.topology import Answer, as_anybody, ask_all, topology_of
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint


@dataclass(frozen=True, slots=True)
class Wholeness:
    """The result of the checks.

    Attributes:
        topology: "host:port" of the nodes of the complete cluster, including nodes that are missing now.
        warnings: Warnings for the user.
    """

    topology: tuple[str, ...]
    warnings: tuple[str, ...]


def find_cache(client: Client, name: str, options: ConnectOptions | None) -> Cache:
    """Return a cache of the cluster.

    Raises:
        CacheNotFound: There is no cache of that name.
        NodesMissing: There is none on this side of the cluster, and some nodes are missing.
    """
    try:
        return client.cache(name)
    except CacheNotFound as error:
        nodes = client.nodes()
        absent = _absent(options, None, nodes) if options else []
        if not absent:
            raise
        raise NodesMissing(len(nodes), list(map(str, absent)), f"Here is {error}") from error


def check_whole(
    cache: Cache,
    partition_map: PartitionMap,
    rows_of: Mapping[int, int],
    nodes: Collection[Node],
    options: ConnectOptions | None,
    facts: Facts,
    *,
    filled: Collection[int] | None,
    allow_partial: bool,
) -> Wholeness:
    """Compare nodes and rows with the configuration and the last count, and store them for the next time.

    Args:
        cache: The cache that was counted.
        partition_map: The owners of its partitions during the count.
        rows_of: Row count of each partition; may be estimated as an even part of its node's count.
        nodes: Nodes of the cluster.
        options: Connection options with the configured endpoints; None does not look for missing nodes.
        facts: Facts stored about the cache.
        filled: The partitions that have rows; None if nobody has read them.
        allow_partial: Only warn about what is missing.

    Raises:
        LoadIncomplete: The load that created the cache has not finished.
        NodesMissing: The remaining rows may be on nodes that are not in this cluster.
        RowsLost: Rows were lost with the nodes that held them.
    """
    if not allow_partial:
        check_complete(cache.client, cache.name, facts)
    known = last_count(facts)
    baseline = _baseline(cache, partition_map, nodes, sum(rows_of.values()))
    evidence = evidence_of_loss(known, baseline, rows_of)
    absent = _absent(options, known, nodes) if options else []
    refusal = _refusal(known, baseline, absent, evidence)
    if refusal is not None and not allow_partial:
        raise refusal
    warnings = doubts(known, cache.name, rows_of) if refusal is None else [_allowed(refusal)]
    if absent and refusal is None:
        warnings.append(f"{_missing_words(absent)}; cache {cache.name!r} has all its rows without them")
    here = topology_of(nodes)
    lost_from = _lost_from(known, baseline.size, has_lost=bool(evidence))
    count = counted_now("a start", baseline.size, baseline.nodes, here, filled, lost_from)
    return Wholeness(_whole(here, _dialled(options, absent)), (*warnings, *_noted(cache, count)))


def _baseline(cache: Cache, partition_map: PartitionMap, nodes: Collection[Node], rows: int) -> Baseline:
    ids = frozenset(node.node_id for node in nodes)
    if partition_map.partitioned:
        return Baseline(cache.name, partition_map.primary_of(), ids, cache.config().backups, rows)
    return Baseline(cache.name, {WHOLE_CACHE: next(iter(ids))}, ids, len(ids) - 1, rows)


def _absent(options: ConnectOptions, known: RowCount | None, nodes: Collection[Node]) -> list[Answer]:
    """Look for nodes that should be in this cluster but are not; return one answer for each."""
    listed = {endpoint for node in nodes for endpoint in node.endpoints}
    seen = [Endpoint.parse(text) for text in known.endpoints] if known else []
    # Loopback addresses lead to whatever runs on this machine now.
    silent = [
        each
        for each in seen
        if is_non_identifying(plain_address(each.host)) and each not in options.endpoints
    ]
    asked = {*options.endpoints, *seen} - listed - set(silent)
    present = {node.node_id for node in nodes}
    own = asked.intersection(options.endpoints)
    # The addresses of earlier counts are untrusted, because any client of Ignite can write them.
    told = [
        *ask_all(options, sorted(own, key=str)),
        *ask_all(as_anybody(options), sorted(asked - own, key=str)),
    ]
    answers = [each for each in told if each.node is None or each.node not in present]
    by_node: dict[uuid.UUID | Endpoint, Answer] = {each.node or each.endpoint: each for each in answers}
    found = list(by_node.values())
    found += [Answer(each, error="it was in the cluster before") for each in silent if each not in listed]
    if known and len(nodes) >= len(known.nodes):
        # There are as many nodes as before, so the missing ones have only changed their addresses.
        found = [each for each in found if each.is_there or each.endpoint in options.endpoints]
    return found


def _refusal(
    known: RowCount | None, baseline: Baseline, absent: Sequence[Answer], evidence: str
) -> IgniteTfError | None:
    if evidence and not absent:
        return RowsLost(baseline.cache, baseline.size, evidence)
    if not absent:
        return None
    words = [str(answer) for answer in absent]
    num_present = len(baseline.nodes)
    held = f"Cache {baseline.cache!r} has {baseline.size:,} rows here"
    if evidence:
        return NodesMissing(num_present, words, f"{held}, {evidence}")
    if known is None and len(absent) > baseline.backups:
        return NodesMissing(
            num_present,
            words,
            f"{held} and keeps {baseline.backups or 'no'} backups: nobody has counted whether these are "
            "all rows",
        )
    is_split = any(answer.is_there for answer in absent)
    if is_split and 2 * num_present <= num_present + len(absent):
        return NodesMissing(num_present, words, f"{held}, and this is not the larger side of the cluster")
    return None


def _lost_from(known: RowCount | None, rows: int, *, has_lost: bool) -> int:
    """Return the row count before all accepted losses, or 0 if the cache has as many rows again."""
    if known is None:
        return 0
    before = max(known.rows, known.lost_from) if has_lost else known.lost_from
    return before if rows < before else 0


def _allowed(refusal: IgniteTfError) -> str:
    return f"ignored because of --allow-partial: {refusal}"


def _missing_words(absent: Sequence[Answer]) -> str:
    return f"not in this cluster: {'; '.join(map(str, absent))}"


def _dialled(options: ConnectOptions | None, absent: Sequence[Answer]) -> list[Answer]:
    """Return the absent endpoints except those to which a supervisor must not send the password later."""
    may_be_told = options is None or as_anybody(options) == options
    return [each for each in absent if may_be_told or (options and each.endpoint in options.endpoints)]


def _whole(here: tuple[str, ...], absent: Sequence[Answer]) -> tuple[str, ...]:
    """Return the nodes whose majority may act: the whole cluster if this side is its majority, else this side only."""
    whole = (*here, *(str(answer.endpoint) for answer in absent if str(answer.endpoint) not in here))
    return whole if 2 * len(here) > len(whole) else here


def _noted(cache: Cache, count: RowCount) -> list[str]:
    try:
        note_count(cache.client, cache.name, count)
    except IgniteTfError as error:
        return [
            f"could not store the row count of cache {cache.name!r} ({count.rows:,}) for the next start: "
            f"{error}"
        ]
    return []
