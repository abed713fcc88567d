"""Plans with row counts for each worker: counted by the nodes, by this process, or left to the workers."""

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
    """Place a run's workers, and count each worker's rows if the facts only contain estimates.

    Whole partitions are read if a few keys hold most of the rows, or if the rows change in the meantime. If counting
    would mean to read many rows, the workers count them instead.

    Raises:
        PlacementError: The workers could not be placed even if no other run held any resources.
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
