"""Opens, lists and stops TensorBoards for runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ignite_tf_magic.serialization.terminal_text import echo
from ignite_tf_magic.session import get_run
from ignite_tf_magic.session.resolve import runs_dir
from ignite_tf_magic.settings.options import configured_cluster, state_dir, working_directory
from ignite_tf_magic.tensorboard.lifecycle import list_boards, open_board, stop_boards
from ignite_tf_magic.tensorboard.record import BoardSpec, LogSource, TensorBoardInfo, log_sources

__all__ = [
    "LOOPBACK",
    "LogSource",
    "TensorBoardInfo",
    "list_tensorboards",
    "open_tensorboard",
    "stop_tensorboard",
]

LOOPBACK = "127.0.0.1"

# For a TensorBoard whose interpreter can import this package but does not have its entry points.
_PROTOCOLS = {"igfs": "ignite_tf_magic.igfs.filesystem.IgfsFileSystem"}

Report = Callable[[str], None]


def open_tensorboard(
    run_ids: Sequence[str] = (),
    *,
    logdirs: Sequence[str] = (),
    host: str = LOOPBACK,
    port: int | None = None,
    report: Report = echo,
) -> TensorBoardInfo:
    """Open a TensorBoard that shows and compares runs, or find the running one; blocks until it answers.

    It does not belong to a kernel: it runs until `stop_tensorboard`, or until it has not been used for 24 hours.
    Anybody who can reach host and port can see it; a TensorBoard has no password. Works while Ignite is down.

    Args:
        run_ids: Runs by their IDs or the beginnings of these. Without these and `logdirs`, all runs are shown,
            including future ones.
        logdirs: Other directories or URIs with event files.
        host: Address at which it listens; by default only this machine can reach it.
        port: Port at which it listens; None takes the first free one from 6006 up.
        report: Called with a line if this takes long.

    Raises:
        RunNotFound: No run matches an ID, or several do.
        TensorBoardError: TensorBoard is not installed, its port is taken, or it ended.
    """
    cluster = configured_cluster()
    spec = BoardSpec(
        sources=_log_sources(run_ids, logdirs),
        cluster=",".join(map(str, cluster.endpoints)) if cluster else "",
        cwd=str(working_directory()),
        protocols=_PROTOCOLS,
        host=host,
        port=port,
    )
    return open_board(spec, _tensorboards_dir(), report)


def list_tensorboards() -> list[TensorBoardInfo]:
    """List this user's TensorBoards on this machine, oldest first."""
    return list_boards(_tensorboards_dir())


def stop_tensorboard(
    run_ids: Sequence[str] = (),
    *,
    logdirs: Sequence[str] = (),
    port: int | None = None,
    report: Report = echo,
) -> list[TensorBoardInfo]:
    """Stop the TensorBoard with these runs and log directories, or at this port; without arguments, all of them.

    Blocks until they are gone; returns those that ran.
    """
    shown = set(_log_sources(run_ids, logdirs)) if run_ids or logdirs else None
    return stop_boards(
        _tensorboards_dir(),
        lambda info: port in {None, info.port} and shown in (None, set(info.logdirs)),
        report,
    )


def _log_sources(run_ids: Sequence[str], logdirs: Sequence[str]) -> tuple[LogSource, ...]:
    """Return where the event files of runs are: in igfs, and among the runs' local files."""
    if not run_ids and not logdirs:
        return LogSource("", "igfs:///runs/*/events"), LogSource("", f"{runs_dir()}/*/files")
    found = [get_run(run_id) for run_id in run_ids]
    in_ignite = [LogSource(run.id, f"{run.directory.uri}/events") for run in found]
    local = [LogSource(run.id, str(run.directory.files)) for run in found]
    return tuple(dict.fromkeys([*in_ignite, *local, *log_sources(logdirs)]))


def _tensorboards_dir() -> Path:
    return state_dir() / "tensorboard"
