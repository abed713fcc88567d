"""The entry point of a worker's process: prepares the process, runs the script or command, and reports how it ended.

Started as `python -m ignite_tf_magic.runs.bootstrap TASK_FILE`. Uses the standard library only, so that the user's
script starts within about 100 ms, under any interpreter that has this package.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import tokenize
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType

from ignite_tf_magic.after_import import call_named
from ignite_tf_magic.launch.files import sync_disk
from ignite_tf_magic.runs import loopback, phases
from ignite_tf_magic.runs.deferred_imports import defer_imports
from ignite_tf_magic.runs.leaving import Leaving
from ignite_tf_magic.runs.listening import listens
from ignite_tf_magic.runs.task import DEFAULT_ENVIRONMENT, ExitReport, WorkerTask, is_python_script
from ignite_tf_magic.runs.unhooked import UnhookedWatch

_SITE_HOOK = str(Path(__file__).resolve().with_name("site_hook"))
_SILENT_S, _PROBE_S = 2.0, 1.0
_EXIT_TEMPORARY = 75  # as in `verdicts`: another attempt may succeed


def main() -> None:
    """Run the task whose file is the only argument, and end the process with the script's exit code."""
    started_at, pid = time.time(), os.getpid()
    task = WorkerTask.read(Path(sys.argv[1]))
    faulthandler.enable()
    leaving = Leaving()
    if task.owner_lock:
        leaving.watch_owner(Path(task.owner_lock))
    preloaded = os.environ.get(loopback.PRELOAD)
    _write_whole_lines()
    _prepare(task)
    if port := os.environ.get(loopback.PORTS):
        _keep_port(int(port), preloaded, task)
    watch = _hook_imports(task) if task.after_import else None
    with leaving.insisting():
        code, error = _run(task)
    if code == 0 and watch is not None and (reason := _why_alone(task, watch)):
        _say(f"ignite_tf_magic: this worker fails, because none of its processes joined the run: {reason}")
        code = 1
    if code and _lacks_room(error):
        code = _EXIT_TEMPORARY
    if os.getpid() != pid:  # a child that the script has forked
        sys.exit(code)
    _end_as_python_does()
    has_room = _report(task, code, error, started_at, leaving.asked)
    code = code if has_room or not code else _EXIT_TEMPORARY
    _flush()
    leaving.sweep()
    # While Python finalizes, destructors of libraries with running threads may block forever. Output of C libraries has
    # already been written, because PYTHONUNBUFFERED makes them write at once.
    os._exit(code)


def _end_as_python_does() -> None:
    """Do what Python does at exit: join the script's non-daemon threads, then call its atexit handlers."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            step()
        except SystemExit:  # SIGTERM ends the waiting
            continue
        except BaseException as error:  # noqa: BLE001 - printed and otherwise ignored, as Python does
            sys.excepthook(type(error), error, error.__traceback__)


def _run(task: WorkerTask) -> tuple[int, BaseException | None]:
    if task.call:
        return _outcome_of(partial(call_named, task.call))
    if task.awaited:
        code, error = _outcome_of(partial(_await_servers, task.awaited, task.await_timeout_s))
        if error is not None:
            return code, error
    phases.tell_phase(phases.SCRIPT)
    script = _script_of(task)
    if script is None:
        return _run_command(task.command)
    return _outcome_of(partial(_run_script, script, task.variables_from))


def _await_servers(addresses: Mapping[str, str], timeout_s: float | None) -> None:
    """Wait until all servers listen; after some seconds, print the names of the missing ones."""
    began_at = time.monotonic()
    tells_at, missing = began_at + _SILENT_S, dict(addresses)
    while missing := {name: address for name, address in missing.items() if not listens(address, _PROBE_S)}:
        now, names = time.monotonic(), ", ".join(f"{name} ({address})" for name, address in missing.items())
        if timeout_s is not None and now - began_at > timeout_s:
            sys.exit(
                f"TensorFlow servers did not start within {timeout_s:g} s: {names}; set a longer limit "
                "with --start-timeout"
            )
        if now > tells_at:
            _say(f"waiting for the TensorFlow servers of {names}")
            tells_at = now + 10 * _SILENT_S
        time.sleep(0.05)


def _lacks_room(error: BaseException | None) -> bool:
    """Return whether a full disk caused an error.

    The file that receives the error message may be on the full disk too, so the exit code reports it.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_whole_lines() -> None:
    """Write each printed line at once and in one piece, as to a terminal.

    An unbuffered stream writes a text and its newline separately; output of threads or C libraries could come between.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _prepare(task: WorkerTask) -> None:
    for name, value in task.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for name, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[phases.FILE] = task.phase_file
    if os.environ.get("MPLBACKEND", "").startswith("module://"):
        os.environ["MPLBACKEND"] = "Agg"  # the notebook's own backend needs the notebook
    Path(task.files).mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_cwd(Path(task.cwd), task.copy_from)
    os.chdir(task.cwd)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = task.cwd  # replaces the entry that `-m` added
    sys.argv = [task.script, *task.args]


def _keep_port(port: int, preloaded: str | None, task: WorkerTask) -> None:
    """Make servers of this task, and of all processes below it, reachable only from its own host."""
    # The user's own variables have been set since the start of the process.
    if first := loopback.joined(preloaded, os.environ.get(loopback.PRELOAD)):
        os.environ[loopback.PRELOAD] = first
    if loopback.keeps(port):
        loopback.prefer_loopback(os.environ)
    elif os.environ.get(loopback.TUNNEL):
        sys.exit(
            "ignite_tf_magic: this run was started with --tunnel, but the library that closes its ports to "
            f"other machines was not loaded ({os.environ.get(loopback.PRELOAD)}); see docs/security.md"
        )
    elif task.tells_of_open_port:
        _say(
            "ignite_tf_magic: warning: TensorFlow ports of this run accept unauthenticated connections "
            "from other machines, because the library that closes them works only on Linux and was not "
            "built, or does not fit; see docs/security.md"
        )


def _hook_imports(task: WorkerTask) -> UnhookedWatch | None:
    """Register the calls that follow imports, for this process and all its child processes: any may be the worker."""
    defer_imports()
    for module, function in task.after_import.items():
        phases.call_after_import(module, partial(call_named, function))
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join([_SITE_HOOK, *known])
    os.environ["IGNITE_TF_AFTER_IMPORT"] = ",".join(map("=".join, task.after_import.items()))
    os.environ["IGNITE_TF_CLAIM_FILE"] = task.claim_file
    if not task.has_peers:
        return None
    watch = UnhookedWatch(_SITE_HOOK, _say)
    watch.start()
    return watch


def _why_alone(task: WorkerTask, watch: UnhookedWatch) -> str:
    """Return why TensorFlow ran without the other workers, if no process took part in the run for this worker."""
    if Path(task.claim_file).exists():
        return ""
    unusable = Path(f"{task.claim_file}.alone")  # written by the site hook
    return "; ".join([*watch.found, *(unusable.read_text().splitlines()[:1] if unusable.exists() else ())])


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a full disk
        os.write(2, f"{line}\n".encode())


def _make_cwd(cwd: Path, copy_from: str) -> None:
    """Create the directory atomically, so that an interrupted copy is never used."""
    if cwd.is_dir():
        return
    if not copy_from:
        cwd.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    part = cwd.with_name(f"{cwd.name}.{os.getpid()}.part")
    shutil.copytree(copy_from, part, symlinks=True)
    part.chmod(0o700)
    sync_disk(part)  # after a power cut, a restart must not find empty files under the final name
    part.rename(cwd)


def _script_of(task: WorkerTask) -> Path | None:
    """Return the script to run in this process, which can report how it ends; None for any other command."""
    if not task.command:
        return Path(task.script)
    if not is_python_script(task.command):
        return None
    _, *rest = task.command
    sys.argv = rest
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(rest[0]).absolute().parent)
    return Path(rest[0]).absolute()


def _run_command(command: tuple[str, ...]) -> tuple[int, BaseException | None]:
    """Run a program as a child of this process, forward SIGTERM to it, and return its exit code."""
    program = sys.executable if command[0] in ("python", "python3") else command[0]
    try:
        child = subprocess.Popen([program, *command[1:]])
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error}", file=sys.stderr)  # noqa: T201
        return 127 if isinstance(error, FileNotFoundError) else 126, None
    while True:
        try:
            code = child.wait()
            break
        except SystemExit:
            child.terminate()
    return (code if code >= 0 else 128 - code), None


def _run_script(script: Path, variables_from: str) -> None:
    """Run the script as the main module. The module is kept because threads and atexit handlers need it."""
    module = ModuleType("__main__")
    module.__file__ = str(script)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    if variables_from:
        module.__dict__.update(call_named(variables_from))
    with tokenize.open(script) as file:  # as Python does: handles a byte order mark or a coding line
        code = compile(file.read(), str(script), "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - what this program is for


def _outcome_of(work: Callable[[], object]) -> tuple[int, BaseException | None]:
    """Call a function; return the exit code for this process, and the error if the code is not 0."""
    try:
        work()
    except SystemExit as error:
        return _exit_code_of(error), error if error.code else None
    except BaseException as error:  # noqa: BLE001 - any error is the script's and is reported
        _strip_own_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1, error
    return 0, None


def _exit_code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201 - as Python itself does
    return 1


def _strip_own_frames(error: BaseException) -> None:
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames


def _report(
    task: WorkerTask, code: int, error: BaseException | None, started_at: float, asked_to_end: bool
) -> bool:
    """Write the report of how the script ended; return False if the disk is full."""
    ends_by_exit = error is None or isinstance(error, SystemExit)
    report = ExitReport(
        exit_code=code,
        started_at=started_at,
        ended_at=time.time(),
        asked_to_end=asked_to_end,
        exception=type(error).__name__ if error else None,
        traceback=None if ends_by_exit else "".join(traceback.format_exception(error)),
    )
    try:
        report.write(Path(task.exit_file))
    except OSError as failure:  # a full disk must not turn a success into a failure
        return not _lacks_room(failure)
    return True


def _flush() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except ValueError:
            pass  # closed by the script
        except OSError:  # a full disk
            setattr(sys, name, None)


if __name__ == "__main__":
    main()
