"""Plans whose workers are told how many rows they read, whoever has counted them."""

from __future__ import annotations

from dataclasses import replace

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.runs.hosts.counting import read_partitions
from ignite_tf_magic.runs.hosts.shares import NotCounted, count_shares
from ignite_tf_magic.runs.record import RunSpec
from ignite_tf_magic.runs.supervision.planning import (
    LaunchFacts,
    Plan,
    left_to_workers,
    plan_launch,
    with_counts,
    with_packed_rows,
)


def plan_counted(client: Client, spec: RunSpec, facts: LaunchFacts) -> Plan:
    """Place a run's workers, and count the rows of each of them where the facts only reckon with some.

    Partitions are read to their ends where few keys gather the rows, or they change meanwhile. Rows that would have to
    be read, and are many, are counted by the workers.

    Raises:
        PlacementError: The workers cannot be spread so, even if no other run held anything.
    """
    plan = _counted(client, spec, facts)
    return with_packed_rows(plan, facts.cache.packed, spec.num_workers) if facts.cache.packed else plan


def _counted(client: Client, spec: RunSpec, facts: LaunchFacts) -> Plan:
    plan = plan_launch(spec, facts)
    if facts.cache.rows_by_node is None or not plan.seats:
        return plan
    shares = count_shares(
        client, facts.cache, [seat.partitions or () for seat in plan.seats[: spec.num_workers]]
    )
    if shares is NotCounted.MUCH:
        return left_to_workers(plan, facts.cache)
    counted = with_counts(plan, facts, shares) if not isinstance(shares, NotCounted) else None
    return counted or plan_launch(spec, replace(facts, cache=read_partitions(client, facts.cache)))
