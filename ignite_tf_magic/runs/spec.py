"""What each worker of a run finds on its host: its environment, its task, its job. Pure."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Any

from ignite_tf_magic.errors import ScriptError, format_ranges
from ignite_tf_magic.launch.jobs import EarlyProgram, Job
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.runs.directory import (
    CREDENTIALS,
    assignment_name,
    claim_name,
    exit_name,
    log_name,
    phase_name,
    script_path,
    task_name,
)
from ignite_tf_magic.runs.orders import TaskSlot, job_name
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.roles import Role, Strategy, filled, template_values, tf_config
from ignite_tf_magic.runs.task import WorkerTask
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

_RESPAWNS = 100
_PYTHONPATH = "PYTHONPATH"
_MADE_OF_SEVERAL = (_PYTHONPATH, loopback.PRELOAD)  # combine our values and the user's, at process start
_SERVER = "ignite_tf_magic.training.task_server:serve"
_SHARE = ("IGNITE_DATASET_PART", "IGNITE_DATASET_ASSIGNED_CACHE", "IGNITE_DATASET_ASSIGNMENT_FILE")
_RENDEZVOUS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "IGNITE_TF_ADDRESS",
)


def rendezvous(record: RunRecord, seat: TaskSlot) -> dict[str, str | None]:
    """Return the variables by which PyTorch's and JAX's processes find each other, named as in `torchrun`."""
    roles, num_workers = record.spec.roles, record.spec.num_workers
    if not (record.spec.strategy is Strategy.SYNC and roles[seat.worker].has_share):
        return dict.fromkeys(_RENDEZVOUS)
    addresses = record.order.addresses
    here = [each.worker for each in record.order.on(seat.host) if roles[each.worker].has_share]
    host, _, port = addresses[0].rpartition(":") if num_workers > 1 else ("127.0.0.1", "", "")
    return {
        "RANK": str(seat.worker),
        "WORLD_SIZE": str(num_workers),
        "LOCAL_RANK": str(here.index(seat.worker)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port or None,
        "IGNITE_TF_ADDRESS": addresses[seat.worker] if port else None,
    }


def assignment(record: RunRecord, seat: TaskSlot) -> dict[str, Any]:
    """Return the row counts of all workers, for equal numbers of steps, and their partitions if nothing was counted."""
    workers = record.order.seats[: record.spec.num_workers]
    found: dict[str, Any] = {
        "cache": record.spec.cache,
        "worker": seat.worker,
        "rows_by_worker": [each.rows for each in workers],
    }
    if not all(each.is_counted for each in workers):
        found["run"] = f"{record.run_id}/{record.generation}"
        found["shares"] = [format_ranges(each.partitions or ()) or "none" for each in workers]
    return found


def credentials(connect: ConnectOptions) -> dict[str, Any]:
    """Return what a worker needs to log in to the cluster; empty if the cluster needs neither login nor TLS."""
    found: dict[str, Any] = {"username": connect.username, "password": connect.password}
    if connect.tls:
        found |= {
            "certfile": connect.tls.certfile,
            "keyfile": connect.tls.keyfile,
            "cert_password": connect.tls.key_password,
            "cafile": connect.tls.cafile,
            "check_hostname": "true" if connect.tls.check_hostname else "false",
        }
    found = {name: value for name, value in found.items() if value is not None}
    # Endpoints to which workers may send these credentials, in addition to their own node.
    return found and {**found, "endpoints": ",".join(map(str, connect.endpoints))}


def worker_environment(
    record: RunRecord, seat: TaskSlot, home: str, *, has_credentials: bool
) -> dict[str, str | None]:
    """Return the variables of one worker, whose run's directory is `home`; None removes an inherited variable."""
    node, spec, role = Endpoint.parse(seat.node), record.spec, record.role(seat.worker)
    return {
        **rendezvous(record, seat),
        **_coordination(record, role),
        **{name: value for name, value in spec.environment.items() if name not in _MADE_OF_SEVERAL},
        "TF_CONFIG": tf_config(spec.strategy, spec.roles, record.order.addresses, seat.worker),
        # Lets TensorFlow's server share its port with the socket that reserves it for this run.
        "TF_GRPC_REUSE_PORT": "1",
        loopback.PORTS: _private_port(record, seat),
        loopback.TUNNEL: "1" if spec.tunnel else None,
        "IGNITE_DATASET_HOST": node.host,
        "IGNITE_DATASET_PORT": str(node.port),
        **_share(record, seat, home),
        "IGNITE_DATASET_CREDENTIALS_FILE": f"{home}/{CREDENTIALS}" if has_credentials else None,
        "IGNITE_DATASET_ALLOW_PARTIAL": "true" if record.spec.allow_partial else None,
        "IGNITE_TF_COMPAT": "1" if spec.compat else None,
        "IGNITE_TF_RUN_ID": record.run_id,
        "IGNITE_TF_RUN_DIR": f"{home}/files",
        "IGNITE_TF_RUN_URI": f"igfs:///runs/{record.run_id}",
    }


def _private_port(record: RunRecord, seat: TaskSlot) -> str | None:
    return record.order.addresses[seat.worker].rpartition(":")[2] if record.has_private_ports else None


def _share(record: RunRecord, seat: TaskSlot, home: str) -> dict[str, str | None]:
    """Return the variables for a task's own rows. A task without a share reads whole caches, as outside of runs."""
    if not record.role(seat.worker).has_share:
        return dict.fromkeys(_SHARE)
    part = None if seat.partitions is None else format_ranges(seat.partitions)
    assigned = f"{home}/{assignment_name(seat.worker, record.generation)}"
    return dict(zip(_SHARE, (part, record.spec.cache, assigned), strict=True))


def _coordination(record: RunRecord, role: Role) -> dict[str, str | None]:
    spec = record.spec
    # Operations that wait for a lost worker fail at once, as TensorFlow's guide recommends.
    fails_fast = {"GRPC_FAIL_FAST": "use_caller"} if spec.strategy is Strategy.ASYNC else {}
    hides_gpus = {"CUDA_VISIBLE_DEVICES": "-1"} if spec.num_gpus and not role.has_share else {}
    return {"IGNITE_TF_STRATEGY": spec.strategy.value, **fails_fast, **hides_gpus}


def worker_task(
    record: RunRecord, seat: TaskSlot, root: str, *, has_credentials: bool, owner_lock: str, is_here: bool
) -> WorkerTask:
    """Return the task of a worker's process.

    Args:
        record: The run.
        seat: The worker's task slot.
        root: State directory of this package on the worker's host.
        has_credentials: Whether the credentials file exists there.
        owner_lock: Lock of the run's owner if it is on the same machine; else empty.
        is_here: Whether that host is the machine on which the run was started, and has its directories.
    """
    spec, role, home = record.spec, record.role(seat.worker), f"{root}/runs/{record.run_id}"
    copy_from = f"{root}/parcels/{spec.job_parcel}" if spec.job_parcel else ""
    stays = spec.cwd is not None and is_here and not copy_from
    own_cwd = f"{home}/work-{seat.worker}" if copy_from else f"{home}/files"
    return WorkerTask(
        worker=seat.worker,
        script="" if spec.command else f"{home}/{script_path(spec.script_name)}",
        args=_filled(record, seat, spec.args),
        cwd=str(spec.cwd) if stays else own_cwd,
        environment=worker_environment(record, seat, home, has_credentials=has_credentials),
        exit_file=f"{home}/{exit_name(seat.worker, record.generation)}",
        phase_file=f"{home}/{phase_name(seat.worker, record.generation)}",
        files=f"{home}/files",
        owner_lock=owner_lock,
        command=_filled(record, seat, spec.command),
        copy_from=copy_from,
        after_import=spec.after_import,
        variables_from=spec.variables_from,
        claim_file=f"{home}/{claim_name(seat.worker, record.generation)}",
        call="" if role.runs_script else _SERVER,
        awaited=_servers(record) if role.job == "chief" else {},
        await_timeout_s=spec.start_timeout_s,
        has_peers=role.must_join,
        tells_of_open_port=seat.worker == 0 and len(spec.roles) > 1,
    )


def _filled(record: RunRecord, seat: TaskSlot, texts: tuple[str, ...]) -> tuple[str, ...]:
    if record.spec.strategy is not Strategy.BETWEEN:
        return texts
    values = template_values(record.spec.roles, record.order.addresses, seat.worker)
    return tuple(filled(text, values) for text in texts)


def _servers(record: RunRecord) -> dict[str, str]:
    pairs = zip(record.spec.roles, record.order.addresses, strict=True)
    return {role.name: address for role, address in pairs if not role.runs_script}


def worker_job(
    record: RunRecord,
    seat: TaskSlot,
    root: str,
    *,
    port: int | None,
    python_path: str | None,
    preload: str | None,
    timeouts: Timeouts,
    early: EarlyProgram | None = None,
) -> Job:
    """Return the job of one worker, which its host starts and watches.

    Args:
        record: The run.
        seat: The worker's task slot.
        root: State directory of this package on the worker's host.
        port: The worker's port, or None.
        python_path: Where the worker finds this package if its interpreter does not have it.
        preload: Path on the host of a library that the worker's processes load before all others.
        timeouts: Timeouts of the run.
        early: The program that may already be running on the host for such a job; None always starts a new process.
    """
    run, generation, home = record.run_id, record.generation, f"{root}/runs/{record.run_id}"
    # Set from the process's first instruction, because ld.so and Python read them at once.
    own = dict(record.spec.environment)
    if paths := [each for each in (own.get(_PYTHONPATH), python_path) if each]:
        own[_PYTHONPATH] = os.pathsep.join(paths)
    if preloads := loopback.joined(preload, own.get(loopback.PRELOAD)):
        own[loopback.PRELOAD] = preloads
    role = record.role(seat.worker)
    return Job(
        run=run,
        name=job_name(generation, seat.worker),
        generation=generation,
        argv=(
            record.interpreter_on(seat.host),
            "-m",
            "ignite_tf_magic.runs.bootstrap",
            f"{home}/{task_name(seat.worker, generation)}",
        ),
        env={"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", **own},
        log=log_name(seat.worker, generation),
        cwd=f"{home}/start",  # empty, so no file there shadows a module
        create_cwd=True,
        lease_s=timeouts.lease_s,
        grace_s=timeouts.grace_s,
        ports=(port,) if port else (),
        num_gpus=record.spec.num_gpus if role.has_share else 0,
        memory_bytes=record.spec.memory_bytes if role.has_share else 0,
        respawns=_RESPAWNS if role.respawns else 0,
        log_limit_bytes=record.spec.log_limit_bytes,
        exit_file=exit_name(seat.worker, generation),
        early=early,
    )


def check_script(source: str, name: str, python: str | None) -> None:
    """Compile a script without running it. Skipped if another interpreter runs it, whose grammar may differ.

    Raises:
        ScriptError: It is not valid Python; the message shows the line, with a mark below the fault.
    """
    if python not in (None, sys.executable):
        return
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the worker compiles it again and shows them
            source.encode()
            compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = "".join(traceback.format_exception_only(error)).rstrip()
        magic = (error.text or "").lstrip().startswith(("%", "!"))
        advice = "a worker runs plain Python: % and ! are the notebook's. " if magic else ""
        raise ScriptError(f"{shown}\n{advice}No worker was started.", error.lineno, error.offset) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ScriptError(f"{name} cannot be compiled: {error}. No worker was started.") from error
