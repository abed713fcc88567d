"""Supervises a run from start to end: observes hosts and cluster, decides, sends orders, and stores the record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ignite_tf_magic.errors import IgniteTfError, NoRoom
from ignite_tf_magic.runs.decisions import (
    STOP_ASKED,
    Observation,
    Reports,
    decide,
    give_up,
    needs_plan,
    next_generation,
)
from ignite_tf_magic.runs.hosts.topology import ClusterSnapshot
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.host_pool import HostPool
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.runs.timeouts import Timeouts

_STEP_S = 0.1
_REPLAN_S = 1.0
_SOON_S = 0.2  # a plan that is ready within this time is used in the same step
# How long a run without a deadline waits for the cluster and for hosts before it gives up.
_PATIENCE_S = 600.0


# Places the workers of a record, given its hosts' reports. Raises IgniteTfError if that is impossible at the moment.
Planner = Callable[[RunRecord, Reports], Plan]


class _Planning:
    """A plan being made in a thread, because counting the rows of a cache may take minutes."""

    def __init__(self, plan: Planner, record: RunRecord, reports: Reports) -> None:
        self._plan = plan
        self._error: Exception | None = None
        self._made: Plan | None = None
        self._thread = threading.Thread(
            target=self._work, args=(record, reports), name=f"plan-{record.run_id}", daemon=True
        )
        self._thread.start()

    def _work(self, record: RunRecord, reports: Reports) -> None:
        try:
            self._made = self._plan(record, reports)
        except Exception as error:  # noqa: BLE001 - raised by `result`
            self._error = error

    def result(self, timeout_s: float) -> Plan | None:
        """Return the plan, or None if it is not ready yet.

        Raises:
            IgniteTfError: No plan is possible at the moment.
        """
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return self._made


class RecordStore(Protocol):
    """The place where a supervisor stores the record."""

    def save(self, record: RunRecord) -> None:
        """Store the newest record.

        Raises:
            RecordChanged: Another supervisor has taken over the run.
        """
        ...


class Supervisor:
    """The supervision loop of one run. One thread calls `run`.

    Args:
        record: The run's current record.
        pool: Its hosts.
        plan: Places the workers of another generation.
        store: Stores the record after each change.
        snapshot: Returns the latest state of the cluster; None for runs that do not watch a cluster.
        is_stop_asked: Returns whether a user on this machine asked to stop the run.
        why_stop: Returns the reason to record for that stop.
    """

    def __init__(
        self,
        record: RunRecord,
        *,
        pool: HostPool,
        plan: Planner,
        store: RecordStore,
        timeouts: Timeouts,
        snapshot: Callable[[], ClusterSnapshot] | None,
        is_stop_asked: Callable[[], bool],
        why_stop: Callable[[], str] = lambda: STOP_ASKED,
    ) -> None:
        self.record = record
        self._pool = pool
        self._plan = plan
        self._store = store
        self._timeouts = timeouts
        self._snapshot = snapshot
        self._is_stop_asked = is_stop_asked
        self._why_stop = why_stop
        self._since = time.monotonic()
        self._planned = float("-inf")
        self._planning: _Planning | None = None
        self._leaving = threading.Event()

    def run(self) -> None:
        """Supervise until the run has ended or `leave` was called."""
        self._pool.follow(self.record)
        while not self.record.state.has_ended and not self._leaving.is_set():
            if not self.step():
                self._pool.wait(_STEP_S)

    def leave(self) -> None:
        """Make `run` return soon, whatever the run's state."""
        self._leaving.set()

    def step(self) -> bool:
        """Decide once; return whether anything has changed."""
        record, observation, reports = self.record, self._observe(), self._pool.reports()
        following = decide(record, reports, observation, self._timeouts)
        if following.state is not record.state:
            self._save(following)  # `observation` has the age of the previous state
            return True
        following = self._note_calm(following, observation)
        wants_plan = needs_plan(following, reports, observation, self._timeouts)
        if not wants_plan:
            self._planning = None  # an unfinished plan would be out of date when it is needed
        if wants_plan and self._is_time_to_plan():
            following = self._with_plan(following, reports, observation)
        elif following.state is RunState.RESTARTING and not observation.may_lead:
            following = replace(following, waiting_for=self._why_not_lead())
        if following == record:
            return False
        self._save(following)
        return True

    def _save(self, record: RunRecord) -> None:
        if record.state is not self.record.state or record.generation != self.record.generation:
            self._since = time.monotonic()
        record = replace(record, version=self.record.version + 1)
        self._store.save(record)
        self.record = record  # set last, so that a record seen here is already stored
        self._pool.follow(record)

    def _observe(self) -> Observation:
        snapshot = self._snapshot() if self._snapshot else None
        may_lead = snapshot is None or snapshot.has_majority_of(self.record.topology)
        is_elsewhere = snapshot is not None and may_lead and self._is_elsewhere(snapshot)
        has_settled = snapshot is not None and snapshot.settled_s >= self._timeouts.settle_s
        return Observation(
            time=time.time(),
            state_age_s=time.monotonic() - self._since,
            stop_asked=self._is_stop_asked(),
            why_stop=self._why_stop(),
            owners_changed=is_elsewhere and has_settled,
            may_lead=may_lead,
            owners_changing=is_elsewhere and not has_settled,
        )

    def _is_elsewhere(self, snapshot: ClusterSnapshot) -> bool:
        """Return whether the partitions' primary owners differ from those when the workers were placed."""
        return None not in (self.record.owners, snapshot.owners) and snapshot.owners != self.record.owners

    def _note_calm(self, record: RunRecord, observation: Observation) -> RunRecord:
        if (
            record.state is RunState.RUNNING
            and record.num_failures
            and observation.state_age_s > self._timeouts.calm_s
        ):
            return replace(record, num_failures=0)
        return record

    # Starting workers again

    def _is_time_to_plan(self) -> bool:
        return time.monotonic() - self._planned >= _REPLAN_S

    def _with_plan(self, record: RunRecord, reports: Reports, observation: Observation) -> RunRecord:
        if self._planning is None:
            self._planning = _Planning(self._plan, record, reports)
        try:
            plan = self._planning.result(_SOON_S)
        except IgniteTfError as error:
            self._planning, self._planned = None, time.monotonic()
            return self._wait_for(record, observation, error)
        if plan is None:
            return replace(record, waiting_for="the rows of the cache are being counted")
        self._planning = None
        known = {host.name: host for host in (*record.hosts, *plan.hosts)}
        return next_generation(replace(record, hosts=tuple(known.values()), owners=plan.owners), plan.seats)

    def _wait_for(self, record: RunRecord, observation: Observation, error: IgniteTfError) -> RunRecord:
        waits_for_room = record.spec.waits_for_room and isinstance(error, NoRoom)
        is_patient = waits_for_room or record.state is RunState.QUEUED or record.spec.deadline_s is not None
        if observation.state_age_s > _PATIENCE_S and not is_patient:
            return give_up(record, f"not started again within {_PATIENCE_S:g} s: {error}")
        return replace(record, waiting_for=str(error))

    def _why_not_lead(self) -> str:
        snapshot = self._snapshot() if self._snapshot else None
        if snapshot is not None and snapshot.error:
            return f"the Ignite cluster: {snapshot.error}"
        return (
            "most of the Ignite nodes that were there when the run started are not to be seen from here; "
            "the other side of the cluster may go on, so this one waits"
        )
