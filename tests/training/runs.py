"""Runs that tests start and wait for."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence

from ignite_tf_magic.session import RunRequest, Session, TrainingRun


def in_turn(scripts: Mapping[str, str]) -> str:
    """Return a script that runs others one after the other in its process; a failure ends only one script.

    TensorFlow takes seconds to start, so tests share a run. Lines with a script's name enclose its output;
    `by_script` finds it.
    """
    return f"""
import pathlib, runpy, tempfile, traceback

folder = pathlib.Path(tempfile.mkdtemp())  # of this worker: another one may be reading where this one writes
for name, source in {dict(scripts)!r}.items():
    path = folder / (name + ".py")
    path.write_text(source)
    print("BEGIN", name, flush=True)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception:
        traceback.print_exc()
    print("END", name, flush=True)
"""


def by_script(texts: Sequence[str]) -> dict[str, list[str]]:
    """Find the output of each script of `in_turn` per worker, given the workers' whole outputs."""
    found: dict[str, list[str]] = {}
    for text in texts:
        for name, said in re.findall(r"^BEGIN (\w+)\n(.*?)^END \1\n", text, re.DOTALL | re.MULTILINE):
            found.setdefault(name, []).append(said)
    return found


def succeeded(session: Session, request: RunRequest, timeout_s: float = 600) -> tuple[TrainingRun, str]:
    """Start a run, wait for its success, and return it with its workers' output."""
    run = session.start_run(request)
    text = "".join(chunk.text for chunk in run.follow())
    run.wait(timeout_s)
    assert run.failure() is None, text
    return run, text


def succeeded_though_killed(
    session: Session,
    request: RunRequest,
    task: int,
    is_time: Callable[[TrainingRun, str], bool],
    timeout_s: float = 600,
) -> tuple[TrainingRun, str]:
    """Like `succeeded`, but send SIGKILL to one task as soon as `is_time` accepts the output so far."""
    run, text, is_killed = session.start_run(request), "", False
    for chunk in run.follow():
        text += chunk.text
        if not is_killed and is_time(run, text):
            pid = run.info().workers[task].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            is_killed = True
    run.wait(timeout_s)
    assert run.failure() is None, text
    return run, text
