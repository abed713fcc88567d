"""Finds and stops a run without a session, also while Ignite is down."""

from __future__ import annotations

from pathlib import Path

from ignite_tf_magic import embedded
from ignite_tf_magic.runs.handles.run import StopOutcome
from ignite_tf_magic.session.resolve import configuration, named_cluster, run_index
from ignite_tf_magic.session.training_run import TrainingRun
from ignite_tf_magic.settings.options import Config, ConnectOptions


def get_run(run_id: str, config: Path | None = None, via: str | None = None) -> TrainingRun:
    """Return the run with this ID, or whose ID or name starts with it. Works while Ignite is down.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No run matches, or several do.
    """
    found = configuration(config, via)
    return TrainingRun.of(run_index(found).find(run_id), lambda: cluster_that_runs(found))


def stop_run(run_id: str, config: Path | None = None, via: str | None = None) -> StopOutcome:
    """End a run's processes: send SIGTERM, wait 3 s for saving, send SIGKILL. Blocks until they are gone.

    Works while Ignite is down.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No run matches, or several do.
        HostUnreachable: A host does not answer; the processes on it end when their lease expires.
        LaunchError: No process could be asked to stop the run.
    """
    return get_run(run_id, config, via).stop()


def cluster_that_runs(config: Config) -> ConnectOptions | None:
    """Return the configured cluster, else the embedded one if it runs."""
    if (options := named_cluster(config)) is not None:
        return options
    running = embedded.status()
    return running.connect_options if running else None
