"""Checks that a cluster, and a cache in it, are whole, so that no run trains on a part of its rows unsaid.

A side of a split answers as any cluster does, with the rows that it has. What tells are the nodes that should be there:
those that are configured, and those that were there when the cache was last counted.
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
    """What was found out.

    Attributes:
        topology: "host:port" of the nodes that make the whole, those included that are missing now.
        warnings: What a person should know, in words.
    """

    topology: tuple[str, ...]
    warnings: tuple[str, ...]


def find_cache(client: Client, name: str, options: ConnectOptions | None) -> Cache:
    """Return a cache of the cluster.

    Raises:
        CacheNotFound: There is none of that name.
        NodesMissing: Nor is there on this side of a cluster of which a part is missing.
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
    """Compare nodes and rows with what is configured and was counted before, and note them for the next time.

    Args:
        cache: What was counted.
        partition_map: Who owned what meanwhile.
        rows_of: The rows of each partition, which may be even parts of those of its node.
        nodes: The nodes of the cluster.
        options: How to reach it, with the endpoints that are configured; None asks for no missing nodes.
        facts: What is noted of the cache.
        filled: The partitions that have rows; None where nobody has looked into them.
        allow_partial: Only warn of what is missing.

    Raises:
        LoadIncomplete: The load that made the cache has not ended.
        NodesMissing: The rest of the rows may be with nodes that are not in this cluster.
        RowsLost: Rows are gone with the nodes that held them.
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
        warnings.append(f"{_missing_words(absent)}; cache {cache.name!r} has all its rows without")
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
    """Ask for nodes that should be in this cluster and are not; one answer for each."""
    listed = {endpoint for node in nodes for endpoint in node.endpoints}
    seen = [Endpoint.parse(text) for text in known.endpoints] if known else []
    # Loopback leads to whatever runs on this machine now.
    silent = [
        each
        for each in seen
        if is_non_identifying(plain_address(each.host)) and each not in options.endpoints
    ]
    asked = {*options.endpoints, *seen} - listed - set(silent)
    present = {node.node_id for node in nodes}
    own = asked.intersection(options.endpoints)
    # Anybody at a node's port can write the notes of earlier counts.
    told = [
        *ask_all(options, sorted(own, key=str)),
        *ask_all(as_anybody(options), sorted(asked - own, key=str)),
    ]
    answers = [each for each in told if each.node is None or each.node not in present]
    by_node: dict[uuid.UUID | Endpoint, Answer] = {each.node or each.endpoint: each for each in answers}
    found = list(by_node.values())
    found += [Answer(each, error="it was there before") for each in silent if each not in listed]
    if known and len(nodes) >= len(known.nodes):
        # As many as were there before: they have other addresses now.
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
            f"{held} and keeps {baseline.backups or 'no'} backups: whether these are all, nobody has counted",
        )
    is_split = any(answer.is_there for answer in absent)
    if is_split and 2 * num_present <= num_present + len(absent):
        return NodesMissing(num_present, words, f"{held}, and this is not the larger side of the cluster")
    return None


def _lost_from(known: RowCount | None, rows: int, *, has_lost: bool) -> int:
    """Return how many rows there were before all losses that were accepted; 0 when there are as many again."""
    if known is None:
        return 0
    before = max(known.rows, known.lost_from) if has_lost else known.lost_from
    return before if rows < before else 0


def _allowed(refusal: IgniteTfError) -> str:
    return f"--allow-partial was given, so that this does not stop the run: {refusal}"


def _missing_words(absent: Sequence[Answer]) -> str:
    return f"not in this cluster: {'; '.join(map(str, absent))}"


def _dialled(options: ConnectOptions | None, absent: Sequence[Answer]) -> list[Answer]:
    """Leave those out to which a supervisor must not send the password later, when it looks for the majority."""
    may_be_told = options is None or as_anybody(options) == options
    return [each for each in absent if may_be_told or (options and each.endpoint in options.endpoints)]


def _whole(here: tuple[str, ...], absent: Sequence[Answer]) -> tuple[str, ...]:
    """Return the nodes whose majority may act: this side of a split only if it is the larger one of the whole."""
    whole = (*here, *(str(answer.endpoint) for answer in absent if str(answer.endpoint) not in here))
    return whole if 2 * len(here) > len(whole) else here


def _noted(cache: Cache, count: RowCount) -> list[str]:
    try:
        note_count(cache.client, cache.name, count)
    except IgniteTfError as error:
        return [
            f"that cache {cache.name!r} has {count.rows:,} rows could not be noted for the next start: {error}"
        ]
    return []
