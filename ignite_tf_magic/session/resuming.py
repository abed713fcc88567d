"""Collects what is needed to restart an ended run: its script, its arguments and its cache, unchanged."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.launch.hosts import call_all
from ignite_tf_magic.launch.parcels import pack_package
from ignite_tf_magic.runs.directory import RunDirectory, make_private
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.manager import RunPlan
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.session.liveness import why_it_may_live
from ignite_tf_magic.session.run_scripts import read_script
from ignite_tf_magic.settings.options import ConnectOptions, timeouts_divisor

_LAST_JOBS_S = 15.0
_POLL_S = 0.1


def plan_to_resume(
    run: Run, registry: Registry, options: ConnectOptions, *, is_of_this_home: bool
) -> RunPlan:
    """Collect what is needed to restart a run from its checkpoints.

    Raises:
        ConfigError: The run has not ended, has succeeded or may live; or something that it needs no longer exists; or
            only the registry knows it, and any client of the cluster can write there.
    """
    if not run.directory.is_verified:
        raise ConfigError(
            f"run {run.id} is not resumed: this machine knows its command only from Ignite, where any client may have "
            f"written it; resume it on {run.record().owner_host}, where it was started"
        )
    state = run.info().state
    if not state.has_ended:
        raise ConfigError(f"run {run.id} is {state.value}: watch it with attach {run.id}, or stop it first")
    if not _has_come_to_rest(run):
        raise ConfigError(
            f"run {run.id} is {state.value}, but processes of it still live here after {_LAST_JOBS_S:g} s; stop it "
            f"first, with stop {run.id}"
        )
    info, record = run.info(), _as_submitted(run)
    if info.state is RunState.SUCCEEDED:
        raise ConfigError(f"run {run.id} has succeeded, so there is nothing to resume; start a new run")
    if info.state is RunState.LOST and (record.detached or not is_of_this_home):
        reason = why_it_may_live(run, registry, is_of_this_home=is_of_this_home)
        if reason is not None:
            raise ConfigError(f"run {run.id} is not resumed: {reason}")
    script = None if record.spec.command else read_script(run)
    package = pack_package() if any(host.ssh is not None for host in record.hosts) else None
    _check_job(run)
    return RunPlan(
        spec=replace(record.spec, package=package.digest if package else record.spec.package),
        plan=Plan((), record.hosts, record.owners, record.topology),
        script=script,
        connect=options,
        parcels=() if package is None else (package,),
        timeouts=Timeouts().scaled(timeouts_divisor()),
    )


def _has_come_to_rest(run: Run) -> bool:
    """Wait for a run's last processes, which end a moment after the run or its owner. Return whether they ended."""
    deadline = time.monotonic() + _LAST_JOBS_S
    while not run.is_over():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def plan_to_take_over(record: RunRecord, options: ConnectOptions) -> RunPlan:
    """Collect what a run needs to continue after its owner exited. The hosts have all that its workers need."""
    return RunPlan(
        spec=record.spec,
        plan=Plan((), record.hosts, record.owners, record.topology),
        script=None,
        connect=options,
        timeouts=Timeouts().scaled(timeouts_divisor()),
    )


def directory_to_resume(run: Run, runs_dir: Path) -> RunDirectory:
    """Return the run's directory on this machine, ready for a new owner; create it for another machine's run."""
    directory = RunDirectory(runs_dir / run.id)
    make_private(directory.files)
    directory.stop_request.unlink(missing_ok=True)
    # The hosts' reconcilers signed with the key. From now on this process owns the run.
    for known in (directory, run.directory):
        known.seal_key.unlink(missing_ok=True)
    return directory


def forget_stop(run: Run, registry: Registry) -> None:
    """Withdraw the stop request of a run, in the registry and on all hosts."""
    registry.request(run.id, stop=False)
    with run.reach.visiting(run.hosts()) as opened:
        call_all(opened, lambda host: host.take_back_stop(run.id))


def _as_submitted(run: Run) -> RunRecord:
    """Return the run's record, with code, hosts and topology as this machine submitted them.

    The hosts have the run's key, so another user of a host might have changed these.
    """
    record, path = run.record(), run.directory.submitted
    if not path.exists():
        return record
    submitted = RunRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
    return replace(record, spec=submitted.spec, hosts=submitted.hosts, topology=submitted.topology)


def _check_job(run: Run) -> None:
    """Raise ConfigError if a host that the run uses no longer has the job's directory."""
    record = run.record()
    digest = record.spec.job_parcel
    if digest is None:
        return
    with run.reach.visiting(run.hosts()) as opened:
        answers = call_all(opened, lambda host: host.has_parcels([digest]))
    used = set(record.order.hosts)
    lacking = [
        name
        for name, answer in answers.items()
        if name in used and (isinstance(answer, IgniteTfError) or not answer)
    ]
    if lacking:
        raise ConfigError(
            f"the files of run {record.run_id} are not on {', '.join(lacking)} any more; start it again from JOB_DIR"
        )
