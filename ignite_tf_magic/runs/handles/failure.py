"""Explains why a run failed: which worker failed first, how its process ended, its last output, and a hint."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from ignite_tf_magic.launch.log_files import tail
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.orders import WorkerEnd
from ignite_tf_magic.runs.record import RunRecord, WorkerRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.verdicts import describe_end, is_read_only

NUM_LAST_LINES = 30


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a run: that of the first failing worker, if a worker failed.

    Attributes:
        summary: One sentence that says what failed.
        worker: Number of the task that failed first, or of the first that did not start or join the others.
        task: Name of that task.
        exit_text: How its process ended, as text; None if it was still running.
        last_lines: The end of its output, without the traceback.
        traceback: The Python traceback; None if there was none.
        hint: What to do about it, for known causes.
        log: File with all its output.
    """

    summary: str
    worker: int
    task: str
    exit_text: str | None
    last_lines: tuple[str, ...]
    traceback: str | None
    hint: str | None
    log: str


def diagnose(directory: RunDirectory, record: RunRecord) -> Failure | None:
    """Return the explanation of a failed run, or None for a run that has not failed."""
    if record.state is not RunState.FAILED:
        return None
    if record.failed_worker is None or record.failed_worker >= len(record.workers):
        log = directory.log(0)
        return Failure(record.reason or "it failed", 0, record.role(0).name, None, (), None, None, str(log))
    worker, end = record.workers[record.failed_worker], record.end
    failed_itself = record.reason is None and worker.exit_code is not None
    exit_text = describe_end(worker.exit_code or 0, end) if failed_itself else None
    log = directory.log(worker.worker, record.generation)
    lines = end.last_lines if end else tail(log, NUM_LAST_LINES)
    trace = end.traceback if end and failed_itself else None
    return Failure(
        summary=record.reason or f"{record.role(worker.worker).name} on {worker.host} failed: {exit_text}",
        worker=worker.worker,
        task=record.role(worker.worker).name,
        exit_text=exit_text,
        last_lines=_lines_without(lines, trace),
        traceback=trace,
        hint=_hint(worker, record, end) if failed_itself else None,
        log=str(log),
    )


def _lines_without(lines: tuple[str, ...], trace: str | None) -> tuple[str, ...]:
    if trace:
        known = [line.rstrip() for line in trace.rstrip().split("\n")]
        for start in range(len(lines) - len(known), -1, -1):
            if list(lines[start : start + len(known)]) == known:
                lines = (*lines[:start], *lines[start + len(known) :])
                break
    return lines[-NUM_LAST_LINES:]


_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"Could not start gRPC server|Failed to add port to server"),
        "another program took a port of this run; start it again",
    ),
    (
        re.compile(r"Address already in use|EADDRINUSE"),
        "the script uses a port that another program holds; free it or choose another",
    ),
    (
        re.compile(r"ResourceExhaustedError|OOM when allocating|MemoryError|std::bad_alloc"),
        "it ran out of memory; use a smaller batch, or fewer workers on this host",
    ),
    (
        re.compile(r"PerReplica.* unsupported|[Uu]nsupported type.*PerReplica|Invalid reduction dimension"),
        "Keras 3's own fit does not run under MultiWorkerMirroredStrategy; leave the strategy out: `fit` trains on "
        "all workers by itself",
    ),
    (
        re.compile(r"CUDA_ERROR_OUT_OF_MEMORY"),
        "the GPU's memory is full; use a smaller batch, or fewer workers on this host",
    ),
    (
        re.compile(r"WorkerService/CompleteGroup"),
        "worker 0 exited when this worker began to train. If the command runs several programs in turn, "
        "worker 0 may have run the previous one: let all workers start the next one at about the same time",
    ),
    (re.compile(r"No space left on device"), "the disk of {host} is full; free some of it"),
)


_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def _about_module(name: str, python: str) -> str:
    """Return a hint on a missing module. One that is not installed here either may be a file of the user's."""
    from importlib.metadata import packages_distributions

    install = f"{shlex.quote(python)} -m pip install {name}"
    if name in packages_distributions():
        return f"the workers' interpreter has no {name}; install it there: {install}"
    return (
        f"{name} is neither installed there nor here. If it is a module of yours, ship its directory: "
        f"ignite-tf start CACHE JOB_DIR python SCRIPT.py; if it is a package: {install}"
    )


def _hint(worker: WorkerRecord, record: RunRecord, end: WorkerEnd | None) -> str | None:
    if end and end.full_disk:
        place = f"the disk of {end.full_disk.rpartition(' (')[0]} on {worker.host}"
        return (
            f"make {place} writable; its kernel log (dmesg) may say why it is not"
            if is_read_only(end)
            else f"free some of {place}"
        )
    python = record.spec.python or record.host(worker.host).python or "python"
    if end and (match := _MISSING_MODULE.search(end.words)):
        return _about_module(match.group(1).partition(".")[0], python)
    for pattern, hint in _HINTS:
        if end and (match := pattern.search(end.words)):
            return hint.format(*match.groups(), python=python, host=worker.host)
    if worker.signal == "SIGKILL":
        return (
            "a process that is killed without an error message has usually run out of memory; check the "
            "system log (dmesg). Use fewer workers or a smaller batch"
        )
    return None
