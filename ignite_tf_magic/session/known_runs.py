"""A run that is looked for without a session, also while Ignite is down; and the names of caches."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ignite_tf_magic import embedded
from ignite_tf_magic.client.cache_facts import NOTES_PREFIX
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.table_names import list_tables
from ignite_tf_magic.config.options import Config, ConnectOptions
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.runs.handles.run import StopOutcome
from ignite_tf_magic.session.resolve import configuration, named_cluster, run_index
from ignite_tf_magic.session.training_run import TrainingRun


def get_run(run_id: str, config: Path | None = None, via: str | None = None) -> TrainingRun:
    """Find a run by its id or the beginning of it. Works while Ignite is down.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No id begins so, or several do.
    """
    found = configuration(config, via)
    return TrainingRun.of(run_index(found).find(run_id), lambda: cluster_that_runs(found))


def stop_run(run_id: str, config: Path | None = None, via: str | None = None) -> StopOutcome:
    """End a run's processes: SIGTERM, 3 s to save, SIGKILL. Blocks until they are gone. Works while Ignite is down.

    Raises:
        ConfigError: The configuration cannot be read.
        RunNotFound: No id begins so, or several do.
        HostUnreachable: A host cannot be asked; what runs there ends when its lease is over.
        LaunchError: Nobody could be asked to stop it.
    """
    return get_run(run_id, config, via).stop()


def cluster_that_runs(config: Config) -> ConnectOptions | None:
    """Return the configured cluster, else the embedded one if it runs."""
    if (options := named_cluster(config)) is not None:
        return options
    running = embedded.status()
    return running.connect_options if running else None


def cache_names(timeout_s: float = 2.0) -> list[str]:
    """List names of caches of the configured cluster, else of the embedded one if it runs; for completion.

    Beside a cache's own name is that of its SQL table, where that is another one and needs no quotes.

    Starts nothing. Empty where no cluster can be asked in that time.
    """
    try:
        options = cluster_that_runs(configuration(None, None))
        if options is None:
            return []
        with connect(replace(options, timeout_s=timeout_s)) as client:
            own = [name for name in client.cache_names() if not name.startswith(NOTES_PREFIX)]
            tables: list[str] = []
            with suppress(IgniteTfError):  # a node that has answered, and is slow with its first statement
                tables = [str(table) for table in list_tables(client.router)]
        return sorted({*own, *(name for name in tables if '"' not in name)})
    except (IgniteTfError, OSError):
        return []
