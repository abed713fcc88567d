"""Orders runs that wait for room: by priority, then by the time of submission. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ignite_tf_magic.errors import NoRoom
from ignite_tf_magic.runs.hosts.capacity import needs_capacity
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.registry.registry import RegistryEntry
from ignite_tf_magic.runs.states import RunState


def check_turn(record: RunRecord, listed: Iterable[RegistryEntry]) -> None:
    """Check that no other queued run comes first. Runs without a living owner do not count.

    Raises:
        NoRoom: Another run that may use the same hosts comes first.
    """
    if record.state is not RunState.QUEUED or not needs_capacity(record.spec):
        return
    first = min(_rivals(record, listed), key=_place, default=record)
    if _place(first) < _place(record):
        priority = (
            f" with priority {first.spec.priority}" if first.spec.priority != record.spec.priority else ""
        )
        raise NoRoom(f"run {first.run_id}{priority} is ahead of it in the queue")


def _rivals(record: RunRecord, listed: Iterable[RegistryEntry]) -> Iterable[RunRecord]:
    for entry in listed:
        if not entry.owner_alive or entry.record.get("state") != RunState.QUEUED.value:
            continue
        with suppress(ValueError):  # the row of another version
            other = RunRecord.from_others(entry.record)
            if other.run_id != record.run_id and needs_capacity(other.spec) and _share_hosts(record, other):
                yield other


def _place(record: RunRecord) -> tuple[int, float, str]:
    return -record.spec.priority, record.started_at, record.run_id


def _share_hosts(one: RunRecord, other: RunRecord) -> bool:
    return not one.spec.hosts or not other.spec.hosts or not set(one.spec.hosts).isdisjoint(other.spec.hosts)
