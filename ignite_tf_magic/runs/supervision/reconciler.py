"""The program that represents a detached run on one of its hosts.

It carries out the orders that it reads from the registry, reports to the registry, and may become the run's supervisor.
An agent starts it as `python -m ignite_tf_magic.runs.supervision.reconciler RUN_DIRECTORY` on every host of the run,
and restarts it if it ends before the run. It connects to its own host's agent and to Ignite, and to no host by SSH.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.errors import IgniteTfError, RecordChanged, RecordDamaged, RecordForged
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.jobs import LinkTimeouts, Renewal
from ignite_tf_magic.launch.lock import HeldLock
from ignite_tf_magic.launch.watch import HostWatch
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.runs.decisions import Reports, mark_stopped
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.run import local_run
from ignite_tf_magic.runs.handles.run_files import RunFiles
from ignite_tf_magic.runs.hosts.capacity import check_capacity, told_capacities
from ignite_tf_magic.runs.hosts.counting import count_cache
from ignite_tf_magic.runs.hosts.run_hosts import hosts_by_record
from ignite_tf_magic.runs.hosts.topology import ClusterSnapshot, TopologyWatch, connect_to_majority
from ignite_tf_magic.runs.orders import HostReport
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord
from ignite_tf_magic.runs.registry.publisher import new_owner
from ignite_tf_magic.runs.registry.queue import check_turn
from ignite_tf_magic.runs.registry.registry import Registry, Stored
from ignite_tf_magic.runs.registry.registry_host_pool import RegistryHostPool
from ignite_tf_magic.runs.seals import Seal, differences
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.counted_plans import plan_counted
from ignite_tf_magic.runs.supervision.host_controller import HostController, HostPayload
from ignite_tf_magic.runs.supervision.planning import LaunchFacts, Plan
from ignite_tf_magic.runs.supervision.reconciler_instructions import (
    INSTRUCTIONS,
    Instructions,
    connect_options,
)
from ignite_tf_magic.runs.supervision.supervisor import Supervisor
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.serialization.terminal_text import echo

_BEAT_S, _BUSY_BEAT_S, _LOOK_S = 0.5, 0.2, 0.1
_CALM = (RunState.QUEUED, RunState.RUNNING)
_FIRST_RECORD_S = 60.0
_NO_KEY = (
    "run {run} has no key here ({path}), so its rows in the registry cannot be verified: an older version "
    "submitted it. Stop it and start it again"
)


class Reconciler:
    """Controls one host of one detached run.

    Args:
        directory: The run's directory on this host.
        instructions: The instructions from the process that submitted the run.
    """

    def __init__(self, directory: RunDirectory, instructions: Instructions, opened: ExitStack) -> None:
        self._directory = directory
        self._name = instructions.host
        self._instructions = instructions
        self._timeouts = Timeouts().scaled(instructions.scale)
        self._options = connect_options(instructions, directory)
        seal = Seal.read(directory)
        if seal is None:
            raise IgniteTfError(_NO_KEY.format(run=directory.run_id, path=directory.seal_key))
        self._registry = opened.enter_context(Registry(self._connect, timeouts=self._timeouts, seal=seal))
        root = directory.path.parent.parent
        self._reach = Reach(root, timeouts=LinkTimeouts().divided(instructions.scale))
        host = opened.enter_context(self._reach.open(HostRecord(self._name)))
        self._watch = HostWatch(host, directory.run_id, logs={}, sink=_NoSink())
        opened.callback(self._watch.stop)
        payload = HostPayload(
            python_path=instructions.python_path,
            loopback=loopback.library(),
            is_here=instructions.is_here,
            has_credentials=instructions.has_credentials,
        )
        self._controller = HostController(
            host,
            self._watch,
            payload=payload,
            timeouts=self._timeouts,
            on_log=_ignore,
            proof=lambda: self._proof,
        )
        self._pool = RegistryHostPool(instructions.scale)
        self._opened = opened
        self._owner = new_owner()
        self._counter = int(time.time() * 1000)  # higher than any counter of an earlier process
        self._stored: Stored | None = None
        self._record = _record_of(directory)
        self._proof: float | None = None  # this host's clock when it last saw a majority of the cluster
        self._lost_at: float | None = None
        self._topology: TopologyWatch | None = None
        self._files: RunFiles | None = None
        self._supervisor: Supervisor | None = None
        self._report: HostReport | None = None

    def _connect(self) -> Client:
        """Connect to the side of the cluster that has the majority of its nodes, not to a node that was cut off."""
        return connect_to_majority(self._options, self._record.topology if self._record else ())

    def run(self) -> None:
        """Work until the run has ended and none of its processes is left on this host."""
        began = time.monotonic()
        while not self._is_over():
            self._beat()
            if self._record is None and time.monotonic() - began > _FIRST_RECORD_S:
                return  # the run was never submitted
            if self._is_given_up():
                self._write_last_record()
                return
            self._rest()
        with suppress(IgniteTfError):  # if this fails, the run's files on this host still show the end
            self._tell()

    def _is_given_up(self) -> bool:
        """Return whether the run was stopped while the cluster was out of reach, and no process of it is left here."""
        if self._lost_at is None or not self._watch.view.stop_asked or self._report is None:
            return False
        return not self._report.living and time.monotonic() - self._lost_at > self._timeouts.dead_after_s

    def _write_last_record(self) -> None:
        if self._record is not None:
            with suppress(OSError):
                mark_stopped(self._record, time.time()).write(self._directory)

    def _rest(self) -> None:
        """Wait for the next beat, which follows soon while workers are being started or ended.

        Changes on this host end the wait, so that they are reported at once.
        """
        is_calm = self._record is not None and self._record.state in _CALM
        beat_s = _BEAT_S if is_calm else _BUSY_BEAT_S
        deadline = time.monotonic() + beat_s / self._instructions.scale
        while time.monotonic() < deadline:
            time.sleep(_LOOK_S / self._instructions.scale)
            if self._record is not None and self._reconcile() and self._has_news():
                return

    def _has_news(self) -> bool:
        """Return whether the report has changed, apart from times; for a supervisor, also whether the cluster has."""
        if self._supervisor and self._topology and not self._topology.snapshot.shows_what(self._acted_on):
            return True
        if self._report is None or self._told is None:
            return self._report is not self._told
        return replace(self._report, silent_s=self._told.silent_s) != self._told

    _told: HostReport | None = None
    _acted_on = ClusterSnapshot()

    def _is_over(self) -> bool:
        record, report = self._record, self._report
        return record is not None and record.state.has_ended and report is not None and not report.living

    def _beat(self) -> None:
        token, topology = self._watch.view.token, self._record.topology if self._record else ()
        try:
            node = self._registry.standing(topology)
            self._read()
            if self._record is None:
                return
            self._reconcile()
            self._tell()
            # Renew leases only if, after the report was written, the same node still sees a majority.
            if node is None or self._registry.standing(self._record.topology) != node:
                self._lose_standing()
                return
            self._lost_at, self._proof = None, token
            self._watch.set_renewal(Renewal(self._record.generation, self._timeouts.lease_s, token))
            self._supervise()
        except RecordChanged:
            self._supervisor = None  # another host has become the supervisor
        except IgniteTfError as error:
            _log(str(error))
            self._lose_standing()
            self._reconcile()

    def _lose_standing(self) -> None:
        """Stop renewing leases and disconnect; the next beat looks for a side with most of the cluster's nodes."""
        self._lost_at = self._lost_at or time.monotonic()
        self._watch.set_renewal(None)
        self._registry.close()

    def _read(self) -> None:
        try:
            stored = self._registry.get(self._directory.run_id)
        except RecordDamaged as error:
            self._refuse(error)
            stored = None
        if stored is None:
            self._bring_back()
            return
        self._stored = stored
        record = RunRecord.from_json(stored.record)
        if self._record is not None and record.version < self._record.version:
            self._bring_back()  # the registry was rebuilt from an older copy
            return
        if self._record is None or self._topology is None or record.version != self._record.version:
            self._take(record)
        self._pool.feed(self._registry.reports(self._directory.run_id))

    def _refuse(self, error: RecordDamaged) -> None:
        """Log once what was found in place of this run's record."""
        told = str(error)
        if isinstance(error, RecordForged) and self._record is not None:
            told = f"{told}. The differences: {differences(error.record, self._record.to_json())}"
        if told != self._refused:
            _log(told)
            self._refused = told

    _refused = ""

    def _take(self, record: RunRecord) -> None:
        self._record = record
        with suppress(OSError):  # a full disk; the registry still has the record
            record.write(self._directory)
        self._pool.follow(record)
        if self._files is None:
            run = local_run(self._directory, self._reach)
            self._files = self._opened.enter_context(RunFiles(run, self._options, _log, host=self._name))
            self._files.start()
        if self._topology is None:
            self._topology = self._opened.enter_context(
                TopologyWatch(self._connect, record.spec.cache, record.topology)
            )

    def _bring_back(self) -> None:
        """Restore the run in the registry, which has lost it, from this host's copy of the record."""
        if self._record is not None:
            self._registry.rebuild([self._record.to_json()])

    def _reconcile(self) -> bool:
        if self._record is None:
            return False
        self._report = self._controller.reconcile(self._record)
        return True

    def _tell(self) -> None:
        if self._report is None:
            return
        self._counter += 1
        row = {**self._report.to_json(), "counter": self._counter}
        self._registry.report(self._directory.run_id, self._name, row)
        self._told = self._report

    # Supervising

    def _supervise(self) -> None:
        record = self._record
        if record is None or record.state.has_ended:
            return
        if record.supervisor != self._name:
            self._supervisor = None
            if not self._should_take_over(record):
                return
            self._save(replace(record, supervisor=self._name, version=record.version + 1))
        if self._supervisor is None:
            self._supervisor = self._new_supervisor()
        self._registry.touch_owner(record.run_id, self._owner, detached=True)
        if self._topology is not None:
            self._acted_on = self._topology.snapshot
        while self._supervisor.step():
            pass

    def _should_take_over(self, record: RunRecord) -> bool:
        if not record.supervisor:
            return True
        unheard_s = self._pool.unheard_s(record.supervisor)
        return unheard_s is not None and unheard_s > self._timeouts.supervisor_lapse_s

    def _new_supervisor(self) -> Supervisor:
        if self._record is None or self._topology is None:
            raise IgniteTfError("a run cannot be supervised before its record was read")
        topology = self._topology
        return Supervisor(
            self._record,
            pool=self._pool,
            plan=self._plan,
            store=_RecordFileStore(self._save),
            timeouts=self._timeouts,
            snapshot=lambda: topology.snapshot,
            is_stop_asked=lambda: bool(self._registry.requests(self._directory.run_id).get("stop")),
        )

    def _save(self, record: RunRecord) -> None:
        if self._stored is None:
            raise IgniteTfError("a record cannot be replaced before it was read")
        self._stored = self._registry.replace(self._stored, record.to_json())
        self._take(record)
        self._reconcile()

    def _plan(self, record: RunRecord, reports: Reports) -> Plan:
        spec, rooms = record.spec, told_capacities(reports)
        with self._connect() as client:
            check_capacity(client, record, rooms)
            check_turn(record, self._registry.runs())
            cache = count_cache(client, spec.cache, self._options, allow_partial=spec.allow_partial)
            by_node = hosts_by_record(record.hosts, cache.nodes.values())
            facts = LaunchFacts(
                cache, by_node, self._unusable(by_node.values()), rooms, self._fallback(record)
            )
            return plan_counted(client, spec, facts).with_seats()

    def _fallback(self, record: RunRecord) -> HostRecord | None:
        """Return the host that ran all workers because no host with a node was usable, if it reports, or None."""
        used = {worker.host for worker in record.workers}
        found = next((host for host in record.hosts if host.ssh is None and used == {host.name}), None)
        return None if found is None or self._unusable([found]) else found

    def _unusable(self, hosts: Iterable[HostRecord]) -> Mapping[str, str]:
        found = {}
        for host in hosts:
            unheard_s = self._pool.unheard_s(host.name)
            if unheard_s is None or unheard_s > self._pool.lapse_s:
                found[host.name] = "it does not report"
        return found


def _record_of(directory: RunDirectory) -> RunRecord | None:
    """Return the record that was submitted with the instructions or left by an earlier process of this host."""
    try:
        return RunRecord.read(directory)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _RecordFileStore:
    save: Any


class _NoSink:
    """Discards output: it stays in this host's files."""

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        """Discard the data."""

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        """Discard the gap."""


def _log(line: str) -> None:
    with suppress(OSError):  # a full disk
        echo(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _ignore(*_: object) -> None:
    """Do nothing. Logs need no handling here."""


def main() -> None:
    """Run the reconciler of the run whose directory is the only argument."""
    directory = RunDirectory(Path(sys.argv[1]))
    instructions = Instructions.read(directory.path / INSTRUCTIONS)
    os.environ.setdefault("IGNITE_TF_HOME", str(directory.path.parent.parent))
    with ExitStack() as opened:
        try:
            opened.enter_context(HeldLock(directory.owner_lock))
        except BlockingIOError:
            sys.exit(
                f"another reconciler of run {directory.run_id} lives on this host; this one leaves it alone"
            )
        try:
            reconciler = Reconciler(directory, instructions, opened)
        except IgniteTfError as error:
            sys.exit(str(error))
        reconciler.run()
    if instructions.has_credentials:
        write_private(directory.credentials, "")


if __name__ == "__main__":
    main()
