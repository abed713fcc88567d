"""A quick overview: the cluster, its caches, the runs. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.runs.record import RunInfo
from ignite_tf_magic.session.cluster_names import cache_names_of
from ignite_tf_magic.session.known_runs import cluster_that_runs
from ignite_tf_magic.session.listing import list_runs
from ignite_tf_magic.session.resolve import configuration, named_cluster
from ignite_tf_magic.settings.options import ConnectOptions


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the cluster, its caches and the runs.

    Attributes:
        cluster: Nodes by which the cluster is reached; empty if none is configured and no embedded one runs.
        is_embedded: Whether it is the embedded cluster on this machine.
        trouble: Why the cluster does not answer; empty if it does, or if there is none.
        caches: Names of its caches, sorted.
        live: Live runs, oldest first.
        newest: The run that was started last, if there is any.
        warnings: Reasons why runs may be missing.
    """

    cluster: tuple[str, ...] = ()
    is_embedded: bool = False
    trouble: str = ""
    caches: tuple[str, ...] = ()
    live: tuple[RunInfo, ...] = ()
    newest: RunInfo | None = None
    warnings: tuple[str, ...] = ()


def overview(config: Path | None = None, via: str | None = None) -> Overview:
    """Return the state of the cluster and the runs; blocks for some seconds if the cluster does not answer.

    Args:
        config: As for `open_session`; so is `via`.
        via: SSH host through which everything is reached.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    found = configuration(config, via)
    options = cluster_that_runs(found)
    caches, trouble = _caches(options)
    listed = list_runs(include_ended=True, config=config, via=via)
    return Overview(
        cluster=tuple(map(str, options.endpoints)) if options else (),
        is_embedded=options is not None and named_cluster(found) is None,
        trouble=trouble,
        caches=caches,
        live=tuple(run for run in listed if not run.state.has_ended),
        newest=listed.runs[-1] if listed.runs else None,
        warnings=listed.warnings,
    )


def _caches(options: ConnectOptions | None) -> tuple[tuple[str, ...], str]:
    if options is None:
        return (), ""
    try:
        return cache_names_of(options), ""
    except (IgniteTfError, OSError) as error:
        return (), str(error)
