"""Verdicts on failures: which of several explains the run's, and may another attempt fare better? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ignite_tf_magic.runs.orders import WorkerEnd
from ignite_tf_magic.runs.record import WorkerRecord

EXIT_TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h: the script itself asks for another attempt
EXIT_HOST_LOST = 113  # errno EHOSTUNREACH
TOO_MUCH_MEMORY = "memory"  # why a shim ended a worker: it had more than its limit
# Linux', whatever the system of who looks: workers run there.
_SIGNAL_NAMES = [
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE"),
    *("SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT"),
    *("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU"),
    *("SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS"),
]
_SIGNALS = {**dict(enumerate(_SIGNAL_NAMES, start=1)), 34: "SIGRTMIN", 64: "SIGRTMAX"}
# A worker that fails within this time before another may have failed because of it.
_CONSEQUENCE_S = 1.0
_CONSEQUENCE = re.compile(
    r"UnavailableError|AbortedError|CancelledError|UNAVAILABLE|Socket closed|Connection reset by peer|"
    r"failed to connect to all addresses|coordination service|Collective ops is aborted|stopped sending heartbeats"
)
PORT_TAKEN = re.compile(r"Could not start gRPC server|Failed to add port to server|Address already in use")
# What the world around a script does to it, and may not do the next time.
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
    """Say in words how a worker ended, and which disk of its host was full, or could only be read, then."""
    if end and end.reason == TOO_MUCH_MEMORY:
        return "it was ended, as it had more memory than its limit (--memory)"
    told = describe_exit(exit_code, oom=end.oom if end else None)
    if not (end and end.full_disk):
        return told
    state = "can only be read" if is_read_only(end) else "is full"
    return f"{told}; the disk {state}: {end.full_disk}"


def is_read_only(end: WorkerEnd) -> bool:
    """Tell whether the disk that its host names could not be written, rather than being full."""
    return bool(end.full_disk and end.full_disk.endswith("(read-only)"))


def describe_exit(exit_code: int, *, oom: bool | None = None) -> str:
    """Say in words how a process ended; `oom` tells whether the system killed it for want of memory."""
    if exit_code == EXIT_HOST_LOST:
        return "its host is out of reach"
    name = normal_exit(exit_code)[1]
    if name is None:
        return f"exit code {exit_code}"
    killed = " (out of memory)" if oom else " (out of memory?)"
    reason = {"SIGKILL": killed, "SIGSEGV": " (a crash in native code)", "SIGABRT": " (aborted)"}
    return f"exit code {exit_code}: killed by {name}{reason.get(name, '')}"


def first_failing(workers: Sequence[WorkerRecord], ends: Mapping[int, WorkerEnd]) -> WorkerRecord | None:
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
    return next((each for each in near if not _is_consequence(each, ends.get(each.worker))), first)


def _is_consequence(worker: WorkerRecord, end: WorkerEnd | None) -> bool:
    if worker.signal not in (None, "SIGABRT"):
        return False  # somebody, or the system, ended it
    return end is not None and _CONSEQUENCE.search(end.words) is not None


def is_retryable(worker: WorkerRecord, end: WorkerEnd | None) -> bool:
    """Tell whether the same script may succeed another time.

    It may after a signal, an OOM kill or a lost host, when a connection broke or a disk was full, and when it
    says so by exit code 75. An exception of the script's own is its last word, and more memory than its limit.
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
    """Tell whether a worker failed because its TensorFlow server could not have its port."""
    return any(PORT_TAKEN.search(end.words) for end in ends.values())
