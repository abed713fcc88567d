"""The runs that there are, without a session, also while Ignite is down."""

from __future__ import annotations

from pathlib import Path

from ignite_tf_magic.runs.handles.run import list_runs as list_local
from ignite_tf_magic.runs.record import RunInfo
from ignite_tf_magic.session.resolve import configuration, run_index, runs_dir
from ignite_tf_magic.session.run_index import Listed


def list_runs(*, include_ended: bool = False, config: Path | None = None, via: str | None = None) -> Listed:
    """List the runs of this machine and of the configured cluster, oldest first.

    Works while Ignite is down: then the hosts are asked over SSH. `Listed.warnings` tells what could not be.

    Args:
        include_ended: Also those that have ended.
        config: As for `open_session`; so is `via`.
        via: SSH host through which all is reached.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    return run_index(configuration(config, via)).runs(include_ended=include_ended)


def left_runs() -> list[RunInfo]:
    """List the runs of this machine that their owners have left, and that who attaches takes over."""
    return [info for info in list_local(runs_dir()) if info.left_until is not None]
