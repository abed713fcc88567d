"""Hands a run over to its own hosts: each gets a reconciler, which then follows the registry."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ignite_tf_magic.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    HostUnreachable,
    IgniteTfError,
    LaunchError,
    RecordDamaged,
)
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.jobs import Job
from ignite_tf_magic.runs.directory import SEAL_KEY, RunDirectory, make_private, new_run_id
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.hosts.host_names import plain_address
from ignite_tf_magic.runs.logs.mirror import seen_directory
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord
from ignite_tf_magic.runs.registry.origins import LocalRun, Origin, RemoteRun
from ignite_tf_magic.runs.registry.publisher import new_owner
from ignite_tf_magic.runs.registry.registry import Owner, Registry
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.runs.supervision.manager import RunPlan, first_record, payload_for
from ignite_tf_magic.runs.supervision.reconciler_instructions import INSTRUCTIONS, Instructions
from ignite_tf_magic.settings.options import Endpoint

_JOB = "reconciler"
_NOTHING = "Nothing of it is left"
_TAKEN_OVER_S = 60.0  # generous, for a busy host, or one whose Python is on a network disk
_TAKEN_BACK_S = 5.0
_POLL_S, _ASK_AGAIN_S = 0.05, 0.5


def submit(
    plan: RunPlan,
    state_dir: Path,
    reach: Reach,
    registry: Callable[..., Registry],
    scale: float,
    prepare: Callable[[str], None] = lambda _: None,
) -> Run:
    """Start a run that its own hosts supervise; returns when one of them does.

    Calls `prepare` with the run's ID before anything of the run exists.

    Raises:
        LaunchError: A host that must have workers could not get a reconciler, or no host took the run over.
        ConnectionFailed: The registry cannot be written.
    """
    run_id = new_run_id(plan.name or plan.spec.cache)
    prepare(run_id)
    record = first_record(plan, run_id, detached=True)
    is_here = any(host.ssh is None for host in record.hosts)
    directory = RunDirectory(state_dir / "runs" / run_id) if is_here else seen_directory(state_dir, run_id)
    seal = Seal.new()
    with registry(seal=seal) as index, ExitStack() as opened:
        hosts = {host.name: opened.enter_context(reach.open(host)) for host in record.hosts}
        failed = _errors(call_all(hosts.values(), Host.hello))
        _check_hosts(run_id, record, failed)
        record = replace(record, hosts=tuple(_with_root(host, hosts[host.name]) for host in record.hosts))
        owner = new_owner()
        with _beating(index, run_id, owner, plan.timeouts.owner_beat_s):
            with _taken_back(index, run_id, directory, hosts.values()):
                make_private(directory.path)
                write_private(directory.seal_key, seal.to_text())
                write_private(directory.submitted, json.dumps(record.to_json()))
                if plan.script is not None:
                    script = directory.script(plan.spec.script_name)
                    script.parent.mkdir(mode=0o700, exist_ok=True)
                    write_private(script, plan.script)
                record.write(directory)
                index.touch_owner(run_id, owner)
                index.create(record.to_json())
                ready = [host for name, host in hosts.items() if name not in failed]
                answers = call_all(ready, partial(_deliver, plan, record, directory, seal, scale))
                failed |= _errors(answers)
                _check_hosts(run_id, record, failed)
                # All hosts get their files before any reconciler starts. A reconciler would take a host that is still
                # being prepared for lost.
                jobs = {name: job for name, job in answers.items() if isinstance(job, Job)}
                failed |= _errors(call_all([hosts[name] for name in jobs], partial(_start, jobs)))
                _check_hosts(run_id, record, failed)
            _await_supervisor(index, run_id, failed)
    return Run(directory, _origin(record, directory, reach, registry), reach)


def _check_hosts(run_id: str, record: RunRecord, failed: Mapping[str, IgniteTfError]) -> None:
    """Raise LaunchError if a required host failed, or if no host can take the run over."""
    needed = record.order.hosts or tuple(host.name for host in record.hosts)
    lacking = [str(failed[name]) for name in needed if name in failed]
    if lacking and (record.order.hosts or len(lacking) == len(needed)):
        raise LaunchError(f"run {run_id} was not started: {'; '.join(lacking)}")


@contextmanager
def _beating(index: Registry, run_id: str, owner: Owner, beat_s: float) -> Iterator[None]:
    """Act as the run's owner until a host takes over. Delivering files to the hosts may take minutes."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(beat_s):
            # The caller's next registry request reports a lost connection.
            with suppress(IgniteTfError):
                index.touch_owner(run_id, owner)

    thread = threading.Thread(target=beat, name=f"owner-{run_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _taken_back(
    index: Registry, run_id: str, directory: RunDirectory, hosts: Iterable[Host]
) -> Iterator[None]:
    """Clean up a run that was not handed over, so that no host works for it and no registry lists it.

    If a host cannot be asked, the run's row stays and soon becomes `lost`; prune removes the rest.

    Raises:
        LaunchError: The block raised it; the message also says what is left.
    """
    try:
        yield
    except BaseException as error:
        left = _errors(call_all(hosts, partial(_try_to_remove, run_id)))
        if not left:
            with suppress(IgniteTfError):  # for example, the registry cannot be asked
                index.remove(run_id)
        shutil.rmtree(directory.path, ignore_errors=True)
        if type(error) is not LaunchError:
            raise
        rest = (
            f"What {', '.join(sorted(left))} may have of it, ignite-tf prune removes later"
            if left
            else _NOTHING
        )
        raise LaunchError(f"{error}. {rest}") from error


def _try_to_remove(run_id: str, host: Host) -> None:
    """Remove everything of a run on a host; retry if its connection broke a moment ago."""
    deadline = time.monotonic() + _TAKEN_BACK_S
    while True:
        try:
            return _remove(run_id, host)
        except HostUnreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(_ASK_AGAIN_S)


def _remove(run_id: str, host: Host) -> None:
    """End a run's processes on a host and remove its files.

    If the host cannot be asked, its reconciler gives up without this call.
    """
    jobs = host.jobs_of(run_id)
    if jobs is None:
        return
    deadline = time.monotonic() + _TAKEN_BACK_S
    host.end(run_id, names=[job.name for job in jobs], grace_s=0, reason="the run was not started")
    while time.monotonic() < deadline and any(not job.has_ended for job in host.jobs_of(run_id) or ()):
        time.sleep(_POLL_S)
    host.remove(run_id)


def _origin(
    record: RunRecord, directory: RunDirectory, reach: Reach, registry: Callable[..., Registry]
) -> Origin:
    """Return where the run is. If it has other hosts, they may continue it without this machine."""
    is_only_here = [host.ssh for host in record.hosts] == [None]
    return LocalRun(directory, reach) if is_only_here else RemoteRun(directory, reach, registry)


def _errors(answers: Mapping[str, object]) -> dict[str, IgniteTfError]:
    return {name: answer for name, answer in answers.items() if isinstance(answer, IgniteTfError)}


def _with_root(record: HostRecord, host: Host) -> HostRecord:
    return replace(record, root=host.facts.root if host.facts else record.root)


def _deliver(
    plan: RunPlan, record: RunRecord, directory: RunDirectory, seal: Seal, scale: float, host: Host
) -> Job:
    """Bring a host everything that its reconciler needs; returns the job that starts it."""
    me = record.host(host.name)
    payload = payload_for(plan, me, directory)
    for parcel in payload.parcels:
        if parcel.digest not in host.has_parcels([parcel.digest]):
            host.put_parcel(parcel)
    python_path = (payload.python_path or "").replace("{root}", me.root or "") or None
    instructions = Instructions(
        me.name, _endpoints(plan, record, me), python_path, payload.has_credentials, me.ssh is None, scale
    )
    files = {
        **payload.files,
        INSTRUCTIONS: instructions.to_text(),
        SEAL_KEY: seal.to_text(),
        "run.json": json.dumps(record.to_json()),
    }
    for path, text in files.items():
        host.write(record.run_id, path, text.encode())
    return _job(record, me, python_path)


def _start(jobs: Mapping[str, Job], host: Host) -> None:
    host.start(jobs[host.name])


def _endpoints(plan: RunPlan, record: RunRecord, host: HostRecord) -> tuple[str, ...]:
    """Return Ignite's nodes: those of this host, the configured ones, then the listed ones, possibly unreachable."""
    own = [node for node in record.topology if plain_address(Endpoint.parse(node).host) in host.addresses]
    return tuple(dict.fromkeys([*own, *map(str, plan.connect.endpoints), *record.topology]))


def _job(record: RunRecord, host: HostRecord, python_path: str | None) -> Job:
    home = f"{host.root}/runs/{record.run_id}"
    path = {"PYTHONPATH": python_path} if python_path else {}
    return Job(
        run=record.run_id,
        name=_JOB,
        generation=0,
        argv=(record.interpreter_on(host.name), "-m", "ignite_tf_magic.runs.supervision.reconciler", home),
        env={"PYTHONUNBUFFERED": "1", "IGNITE_TF_HOME": host.root or "", **path},
        log="reconciler.log",
        cwd=f"{home}/start",
        create_cwd=True,
        keep=True,
        log_limit_bytes=16 << 20,
    )


def _await_supervisor(registry: Registry, run_id: str, failed: Mapping[str, IgniteTfError]) -> None:
    """Wait until a host supervises the run.

    From here on the run may continue without this process. Only an answer from the registry, or a long silence, ends
    the wait: if a node dies now, the registry does not answer until the other nodes notice.

    Raises:
        LaunchError: No host took the run over in time, or the registry cannot be read.
    """
    deadline = time.monotonic() + _TAKEN_OVER_S
    unread: IgniteTfError | None = None
    while time.monotonic() < deadline + (_TAKEN_OVER_S if unread else 0.0):
        try:
            stored, unread = registry.get(run_id), None
            if stored is not None and stored.record.get("supervisor"):
                return
        except (
            ConnectionFailed,
            DeadlineExceeded,
            RecordDamaged,
        ) as error:  # the run's hosts repair a damaged row
            unread = error
        time.sleep(_POLL_S)
    if unread is not None:
        raise LaunchError(
            f"cannot tell whether a host has taken run {run_id} over: {unread}. It may go on: ignite-tf ps shows it, "
            f"ignite-tf stop {run_id} ends it"
        )
    reasons = f" ({'; '.join(map(str, failed.values()))})" if failed else ""
    raise LaunchError(
        f"no host has taken run {run_id} over within {_TAKEN_OVER_S:g} s{reasons}. See reconciler.log in "
        f"the run's directory on the hosts; ignite-tf stop {run_id} ends the run's processes"
    )
