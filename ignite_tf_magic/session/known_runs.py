"""What is looked at without a session, also while Ignite is down: runs, and all that runs need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ignite_tf_magic import embedded
from ignite_tf_magic.client.cache_facts import NOTES_PREFIX
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.config.options import Config, ConnectOptions
from ignite_tf_magic.doctor.diagnosis import Diagnosis
from ignite_tf_magic.doctor.doctor import examine
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.runs.handles.run import StopOutcome
from ignite_tf_magic.runs.handles.run import list_runs as list_native
from ignite_tf_magic.runs.record import RunInfo
from ignite_tf_magic.session.resolve import configuration, named_cluster, reach_of, run_index, runs_dir
from ignite_tf_magic.session.run_index import Listed
from ignite_tf_magic.session.training_run import TrainingRun


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
    return [info for info in list_native(runs_dir()) if info.left_until is not None]


def get_run(run_id: str, config: Path | None = None, via: str | None = None) -> TrainingRun:
    """Find a run by its id or the beginning of it. Works while Ignite is down.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No id begins so, or several do.
    """
    found = configuration(config, via)
    return TrainingRun.of(run_index(found).find(run_id), lambda: _cluster_that_runs(found))


def stop_run(run_id: str, config: Path | None = None, via: str | None = None) -> StopOutcome:
    """End a run's processes: SIGTERM, 3 s to save, SIGKILL. Blocks until they are gone. Works while Ignite is down.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No id begins so, or several do.
        HostUnreachable: A host cannot be asked; what runs there ends when its lease is over.
        LaunchError: Nobody could be asked to stop it.
    """
    return get_run(run_id, config, via).stop()


def _cluster_that_runs(config: Config) -> ConnectOptions | None:
    """Give the configured cluster, else the embedded one if it runs."""
    if (options := named_cluster(config)) is not None:
        return options
    running = embedded.status()
    return running.connect_options if running else None


def cache_names(timeout_s: float = 2.0) -> list[str]:
    """List the caches of the configured cluster, else of the embedded one if it runs; for completion.

    Starts nothing. Empty where no cluster can be asked in that time.
    """
    try:
        options = _cluster_that_runs(configuration(None, None))
        if options is None:
            return []
        with connect(replace(options, timeout_s=timeout_s)) as client:
            return sorted(name for name in client.cache_names() if not name.startswith(NOTES_PREFIX))
    except (IgniteTfError, OSError):
        return []


def diagnose(
    cache: str | None = None,
    *,
    python: str | None = None,
    config: Path | None = None,
    via: str | None = None,
) -> Diagnosis:
    """Look at all that a run needs: the cluster, its hosts, and the ways between them. Starts nothing.

    Works while Ignite is down: then the configured hosts are looked at.

    Args:
        cache: Whose data to look for.
        python: Interpreter of the workers; None is each host's configured one.
        config: As for `open_session`; so is `via`.
        via: SSH host through which all is reached.

    Raises:
        ConfigError: The configuration cannot be read.
        CacheNotFound: There is no such cache.
    """
    found = configuration(config, via)
    return examine(_cluster_that_runs(found), found, reach_of(found), cache, python)
