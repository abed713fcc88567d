"""System calls of a shim: starts a process that dies with the shim, holds ports, punches holes into logs."""

from __future__ import annotations

import errno
import os
import signal

from ignite_tf_magic.launch.agent.processes import JOB_MARK, KEEPER_MARK, die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLOCK_BYTES = 4096
KEEPER_SIGNALS = (signal.SIGCHLD, getattr(signal, "SIGUSR1", signal.SIGINT), signal.SIGTERM)
_PUNCH_HOLE_KEEPING_SIZE = 0x03
_PRELOAD = "LD_PRELOAD"
_BEYOND_EVERY_LOG = 1 << 40  # not just behind the end, where the job may be writing


class StartFailed(Exception):
    """A job's process cannot be started. The relay passes this error on to its client."""

    def __init__(self, kind: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.facts = facts


def start_failure(error: OSError, what: str, kind: str | None = None) -> StartFailed:
    """Convert an error of the operating system into a start failure of the protocol."""
    kinds = {
        errno.ENOSPC: "disk_full",
        errno.EDQUOT: "disk_full",
        errno.EACCES: "denied",
        errno.EPERM: "denied",
    }
    kinds.update(dict.fromkeys((errno.ELOOP, errno.EISDIR, errno.ENOTDIR), "bad_path"))
    kind = kind or kinds.get(error.errno or 0, "os_error")
    return StartFailed(kind, f"{what}: {error.strerror or error}", errno=error.errno)


def spawn(request: dict[str, Any], log: int) -> int:
    """Start the job's process; return its pid once it runs the requested program.

    Raises:
        StartFailed: The program cannot run; the message says why.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(request, log, tell)
    os.close(tell)
    with open(told, "rb") as file:
        failed = file.read().decode()
    if not failed:
        return pid
    os.waitpid(pid, 0)
    step, _, number = failed.partition(" ")
    error = OSError(int(number), os.strerror(int(number)))
    if step == "directory":
        raise start_failure(error, f"cannot use the directory {request['cwd']!r}", "no_directory")
    if step == "program":
        raise start_failure(error, f"cannot run {request['argv'][0]!r}", "no_program")
    raise start_failure(error, f"cannot start {request['argv'][0]!r}")


def _become(request: dict[str, Any], log: int, tell: int) -> None:
    """Turn this forked process into the job's process. Never returns."""
    step = "process"
    shim = os.getppid()
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != shim:
            os._exit(1)
        os.umask(request["umask"])
        os.lseek(0, 0, os.SEEK_SET)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (
            *KEEPER_SIGNALS,
            signal.SIGPIPE,
            getattr(signal, "SIGXFSZ", signal.SIGPIPE),
            signal.SIGINT,
        ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "directory"
        os.chdir(request["cwd"])
        step = "program"
        os.execvpe(request["argv"][0], request["argv"], job_environment(request))
    except OSError as error:
        os.write(tell, f"{step} {error.errno}".encode())
    except ValueError:  # a NUL in an argument or a variable
        os.write(tell, f"{step} {errno.EINVAL}".encode())
    finally:
        os._exit(127)


def job_environment(request: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a job's process, which extends that of this process."""
    inherited = {name: value for name, value in os.environ.items() if name != KEEPER_MARK}
    found = {**inherited, **request["env"], **request["gpu_env"], JOB_MARK: request["nonce"]}
    # Libraries that the user preloads on this host are loaded as well, after the job's.
    if _PRELOAD in inherited and _PRELOAD in request["env"]:
        found[_PRELOAD] = f"{request['env'][_PRELOAD]}:{inherited[_PRELOAD]}"
    return found


def held_port(port: int) -> Any:
    """Bind a port so that the job's own server can share it, and no other program takes it."""
    import socket

    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # `bind` still fails if any program listens
    try:
        held.bind(("", port))
    except OSError as error:
        raise StartFailed("port_taken", f"port {port} is taken: {error.strerror}", port=port) from error
    if hasattr(socket, "SO_REUSEPORT"):
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held


def can_punch(log: int) -> bool:
    """Return whether the file system can free the head of this file. Tests it far beyond the file's end."""
    return _fallocate(log, _BEYOND_EVERY_LOG, BLOCK_BYTES)


def punch(log: int, end: int) -> None:
    """Free the bytes of a log up to `end`. Offsets stay the same."""
    _fallocate(log, 0, end)


def _fallocate(descriptor: int, offset: int, length: int) -> bool:
    try:
        import ctypes

        call = ctypes.CDLL(None).fallocate
    except (ImportError, OSError, AttributeError):
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return bool(call(descriptor, _PUNCH_HOLE_KEEPING_SIZE, offset, length) == 0)
