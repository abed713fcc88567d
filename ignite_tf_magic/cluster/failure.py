"""Why a run failed: which worker failed first, how its process ended, what it said, what helps."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ignite_tf_magic.cluster.directory import RunDirectory
from ignite_tf_magic.cluster.output import tail
from ignite_tf_magic.cluster.record import RunRecord, WorkerRecord
from ignite_tf_magic.cluster.states import RunState
from ignite_tf_magic.cluster.task import ExitReport

NUM_LAST_LINES = 30
# A worker that fails within this time before another may have failed because of it.
_CONSEQUENCE_S = 1.0
_CONSEQUENCE = re.compile(
    r"UnavailableError|AbortedError|CancelledError|UNAVAILABLE|Socket closed|Connection reset by peer|"
    r"failed to connect to all addresses|coordination service|Collective ops is aborted|stopped sending heartbeats"
)
_PORT_TAKEN = re.compile(r"Could not start gRPC server|Failed to add port to server")


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a run, the first failing worker's where a worker failed.

    Attributes:
        summary: One sentence: what happened to whom.
        worker: The worker that failed first, or the first that did not come up.
        exit_text: How its process ended, in words; None when it was still running.
        last_lines: The end of its output, without the traceback.
        traceback: The Python traceback, None when there was none.
        hint: What to do about it, for known causes.
        log: File with all its output.
    """

    summary: str
    worker: int
    exit_text: str | None
    last_lines: tuple[str, ...]
    traceback: str | None
    hint: str | None
    log: str


def normal_exit(return_code: int) -> tuple[int, str | None]:
    """Turn a process's return code into the exit code a shell shows and the signal's name."""
    number = -return_code if return_code < 0 else return_code - 128 if 128 < return_code < 160 else 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        return return_code & 0xFFFFFFFF, None
    return 128 + number, name


def describe_exit(exit_code: int) -> str:
    """Say in words how a process ended."""
    name = normal_exit(exit_code)[1]
    if name is None:
        return f"exit code {exit_code}"
    reason = {"SIGKILL": " (out of memory?)", "SIGSEGV": " (a crash in native code)", "SIGABRT": " (aborted)"}
    return f"exit code {exit_code}: killed by {name}{reason.get(name, '')}"


def first_failing(directory: RunDirectory, workers: Sequence[WorkerRecord]) -> WorkerRecord | None:
    """Find the worker whose failure explains the run's.

    That is the first to fail by time, among those that were not ended by the owner; but one that only
    lost its connection to another steps back behind a worker that failed by itself within a second.
    """
    failed = [each for each in workers if each.exit_code and not each.ended_by_owner]
    failed.sort(key=lambda each: each.ended_at or 0.0)
    if not failed:
        return None
    first = failed[0]
    near = [each for each in failed if (each.ended_at or 0.0) <= (first.ended_at or 0.0) + _CONSEQUENCE_S]
    return next((each for each in near if not _is_consequence(directory, each)), first)


def found_port_taken(directory: RunDirectory, worker: int) -> bool:
    """Tell whether a worker failed because its TensorFlow server could not have its port."""
    return _PORT_TAKEN.search(_words_of(directory, worker)) is not None


def describe_missing(directory: RunDirectory, missing: Iterable[int], timeout_s: float) -> str:
    """Say which workers did not come up in time, what they said last, and what that may mean."""
    said = []
    for worker in missing:
        lines = tail(directory.log(worker), 1) or ("nothing",)
        said.append(f"worker {worker} (its last line: {lines[0]})")
    return (
        f"not up within {timeout_s:g} s: {', '.join(said)}. A worker is up when its TensorFlow server listens "
        "at its address in TF_CONFIG, which creating tf.distribute.MultiWorkerMirroredStrategy() does. Does "
        "the script create it, on every worker, and early? A longer limit may help on a loaded machine; use "
        "one worker for a script that trains alone"
    )


def diagnose(directory: RunDirectory, record: RunRecord) -> Failure | None:
    """Explain a failed run; None for a run that has not failed."""
    if record.state not in (RunState.FAILED, RunState.FAILING) or record.failed_worker is None:
        return None
    worker = record.workers[record.failed_worker]
    report = ExitReport.read(directory.exit(worker.worker))
    trace = report.traceback if report else None
    failed_itself = worker.exit_code is not None and not worker.ended_by_owner
    exit_text = describe_exit(worker.exit_code or 0) if failed_itself else None
    return Failure(
        summary=record.reason or f"worker {worker.worker} on {worker.host} failed: {exit_text}",
        worker=worker.worker,
        exit_text=exit_text,
        last_lines=_lines_without(tail(directory.log(worker.worker), 4 * NUM_LAST_LINES), trace),
        traceback=trace if failed_itself else None,
        hint=_hint(worker, record, _words_of(directory, worker.worker)) if failed_itself else None,
        log=str(directory.log(worker.worker)),
    )


def _words_of(directory: RunDirectory, worker: int) -> str:
    report = ExitReport.read(directory.exit(worker))
    return "\n".join([*tail(directory.log(worker), NUM_LAST_LINES), (report and report.traceback) or ""])


def _is_consequence(directory: RunDirectory, worker: WorkerRecord) -> bool:
    if worker.signal not in (None, "SIGABRT"):
        return False  # somebody, or the system, ended it
    return _CONSEQUENCE.search(_words_of(directory, worker.worker)) is not None


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
        re.compile(r"No module named '([\w.]+)'"),
        "the workers' interpreter has no {0}; install it there: {python} -m pip install {0}",
    ),
    (_PORT_TAKEN, "another program took a port of this run; start it again"),
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
        "Keras 3's own fit does not run under MultiWorkerMirroredStrategy; write a short training loop as the "
        "quick start does, or use one worker",
    ),
    (
        re.compile(r"CUDA_ERROR_OUT_OF_MEMORY"),
        "the GPU's memory is full; use a smaller batch, or fewer workers on this host",
    ),
)


def _hint(worker: WorkerRecord, record: RunRecord, words: str) -> str | None:
    for pattern, hint in _HINTS:
        if match := pattern.search(words):
            return hint.format(*match.groups(), python=record.python)
    if worker.signal == "SIGKILL":
        return (
            "a process that is killed without a word has most often used more memory than there was; the system's "
            "log (dmesg) tells. Use fewer workers or a smaller batch"
        )
    return None
