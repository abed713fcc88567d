"""Lists runs without a session, also while Ignite is down."""

from __future__ import annotations

import os
from pathlib import Path

from ignite_tf_magic.errors import RunNotFound
from ignite_tf_magic.launch.agent.processes import JOB_MARK
from ignite_tf_magic.runs.handles.run import list_runs as list_local
from ignite_tf_magic.runs.record import RunInfo
from ignite_tf_magic.session.resolve import configuration, run_index, runs_dir
from ignite_tf_magic.session.run_index import Listed
from ignite_tf_magic.settings.options import state_dir

_MARK = f"{JOB_MARK}=".encode()


def list_runs(*, include_ended: bool = False, config: Path | None = None, via: str | None = None) -> Listed:
    """List the runs of this machine and of the configured cluster, oldest first.

    Works while Ignite is down, by asking the hosts over SSH. `Listed.warnings` contains what could not be asked.

    Args:
        include_ended: Also list ended runs.
        config: As for `open_session`; so is `via`.
        via: SSH host through which everything is reached.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    return run_index(configuration(config, via)).runs(include_ended=include_ended)


def kept_ready() -> tuple[int, int]:
    """Return the number of warm processes that wait on this machine, and their memory in bytes. Linux only."""
    nonces = {path.suffix[1:].encode() for path in (state_dir() / "parked").glob("*.*")}
    count = num_bytes = 0
    for process in Path("/proc").glob("[0-9]*") if nonces else ():
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            pages = int((process / "statm").read_text().split()[1])
        except OSError:  # it has ended, or belongs to another account
            continue
        if any(each.partition(b"=")[2] in nonces for each in variables if each.startswith(_MARK)):
            count += 1
            num_bytes += pages * os.sysconf("SC_PAGE_SIZE")
    return count, num_bytes


def only_run(*, or_newest: bool = False, config: Path | None = None, via: str | None = None) -> RunInfo:
    """Return this user's only live run, for commands that do not name one.

    Never returns other users' runs in the same cluster: this machine has neither their directory nor their key.

    Args:
        or_newest: If no run is live, return the one that was started last.
        config: As for `open_session`; so is `via`.
        via: SSH host through which everything is reached.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No run is live; or several are, which the error lists; or not all live runs could be seen.
    """
    index = run_index(configuration(config, via))
    listed = index.runs(include_ended=True)
    if listed.warnings and not or_newest:
        raise RunNotFound(f"not all runs can be seen ({'; '.join(listed.warnings)}); name the run")
    runs = [run for run in listed if index.is_verified(run.id)]
    live = [run for run in runs if not run.state.has_ended]
    if len(live) > 1:
        raise RunNotFound(f"{len(live)} runs are live: {', '.join(run.id for run in live)}; name one of them")
    if live or (or_newest and runs):
        return (live or runs)[-1]
    last = f"; the last one is {runs[-1].id}, {runs[-1].state.value}" if runs else ""
    raise RunNotFound(f"no run is live{last}")


def left_runs() -> list[RunInfo]:
    """List the runs of this machine whose owners exited. `attach_run` takes such a run over."""
    return [info for info in list_local(runs_dir()) if info.left_until is not None]
