"""Verdicts on failures: which worker's failure explains the run's, and may another attempt succeed? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ignite_tf_magic.runs.orders import WorkerEnd
from ignite_tf_magic.runs.record import WorkerRecord

EXIT_TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h: the script itself asks for another attempt
EXIT_HOST_LOST = 113  # errno EHOSTUNREACH
TOO_MUCH_MEMORY = "memory"  # the shim's reason for ending a worker that exceeded its memory limit
# Signals of Linux, where workers run, whatever the system of this process.
_SIGNAL_NAMES = [
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE"),
    *("SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT"),
    *("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU"),
    *("SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS"),
]
_SIGNALS = {**dict(enumerate(_SIGNAL_NAMES, start=1)), 34: "SIGRTMIN", 64: "SIGRTMAX"}
# If two workers fail within this time, the first may have failed because of the second.
_CONSEQUENCE_S = 1.0
_CONSEQUENCE = re.compile(
    r"UnavailableError|AbortedError|CancelledError|UNAVAILABLE|Socket closed|Connection reset by peer|"
    r"failed to connect to all addresses|coordination service|Collective ops is aborted|stopped sending heartbeats"
)
PORT_TAKEN = re.compile(r"Could not start gRPC server|Failed to add port to server|Address already in use")
# Failures caused by the environment of a script, which may not happen again.
_PASSING = re.compile(
    r"No space left on device|Errno 28|ENOSPC|Cannot allocate memory|"
    r"No route to host|Network is unreachable|Network is down|Connection timed out"
)
_PASSING_EXCEPTIONS = {
    *(
        "ConnectionLost",
        "ConnectionFailed",
        "HandshakeError",
        "PartitionsLost",
        "RowsLost",
        "NoSpace",
        "DeadlineExceeded",
    ),
    *("ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "TimeoutError"),
    *("UnavailableError", "AbortedError", "DeadlineExceededError"),
}


def normal_exit(return_code: int) -> tuple[int, str | None]:
    """Turn a process's return code into the exit code a shell shows and the signal's name."""
    number = -return_code if return_code < 0 else return_code - 128 if 128 < return_code < 160 else 0
    name = _SIGNALS.get(number)
    return (return_code & 0xFFFFFFFF, None) if name is None else (128 + number, name)


def describe_end(exit_code: int, end: WorkerEnd | None) -> str:
    """Describe how a worker ended, and which disk of its host was full or read-only at that time."""
    if end and end.reason == TOO_MUCH_MEMORY:
        return "it was ended because it exceeded its memory limit (--memory)"
    told = describe_exit(exit_code, oom=end.oom if end else None)
    if not (end and end.full_disk):
        return told
    state = "is read-only" if is_read_only(end) else "is full"
    return f"{told}; the disk {state}: {end.full_disk}"


def is_read_only(end: WorkerEnd) -> bool:
    """Return whether the reported disk was read-only rather than full."""
    return bool(end.full_disk and end.full_disk.endswith("(read-only)"))


def describe_exit(exit_code: int, *, oom: bool | None = None) -> str:
    """Describe how a process ended; `oom` is whether the system killed it for lack of memory, None if unknown."""
    if exit_code == EXIT_HOST_LOST:
        return "its host is out of reach"
    name = normal_exit(exit_code)[1]
    if name is None:
        return f"exit code {exit_code}"
    killed = " (out of memory)" if oom else " (out of memory?)"
    reason = {"SIGKILL": killed, "SIGSEGV": " (a crash in native code)", "SIGABRT": " (aborted)"}
    return f"exit code {exit_code}: killed by {name}{reason.get(name, '')}"


def first_failing(workers: Sequence[WorkerRecord], ends: Mapping[int, WorkerEnd]) -> WorkerRecord | None:
    """Return the worker whose failure explains the run's, or None.

    This is the first worker to fail that the owner did not end. But if it only lost its connection to another worker,
    a worker that failed by itself within a second takes precedence.
    """
    failed = [each for each in workers if each.exit_code and not each.ended_by_owner]
    failed.sort(key=lambda each: each.ended_at or 0.0)
    if not failed:
        return None
    first = failed[0]
    near = [each for each in failed if (each.ended_at or 0.0) <= (first.ended_at or 0.0) + _CONSEQUENCE_S]
    return next((each for each in near if not _is_consequence(each, ends.get(each.worker))), first)


def _is_consequence(worker: WorkerRecord, end: WorkerEnd | None) -> bool:
    if worker.signal not in (None, "SIGABRT"):
        return False  # a user or the system ended it
    return end is not None and _CONSEQUENCE.search(end.words) is not None


def is_retryable(worker: WorkerRecord, end: WorkerEnd | None) -> bool:
    """Return whether the same script may succeed another time.

    Retryable failures are a signal, an OOM kill, a lost host, a broken connection, a full disk, and exit code 75, by
    which a script asks for a retry. Exceptions of the script itself and exceeding the memory limit are final.
    """
    if end is not None and end.reason == TOO_MUCH_MEMORY:
        return False
    if worker.signal is not None or worker.exit_code in (EXIT_TEMPORARY, EXIT_HOST_LOST):
        return True
    if end is None or end.code is None:
        return True
    if end.exception in _PASSING_EXCEPTIONS:
        return True
    return any(pattern.search(end.words) for pattern in (PORT_TAKEN, _PASSING, _CONSEQUENCE))


def took_a_port(ends: Mapping[int, WorkerEnd]) -> bool:
    """Return whether a worker failed because its TensorFlow server could not bind its port."""
    return any(PORT_TAKEN.search(end.words) for end in ends.values())
