"""The doctor: checks everything that runs need, without a session, also while Ignite is down."""

from __future__ import annotations

from pathlib import Path

from ignite_tf_magic.doctor.diagnosis import Diagnosis
from ignite_tf_magic.doctor.doctor import examine
from ignite_tf_magic.session.known_runs import cluster_that_runs
from ignite_tf_magic.session.resolve import configuration, reach_of


def diagnose(
    cache: str | None = None,
    *,
    python: str | None = None,
    config: Path | None = None,
    via: str | None = None,
) -> Diagnosis:
    """Check everything that a run needs: the cluster, its hosts, and the connections between them. Starts nothing.

    Works while Ignite is down, by checking the configured hosts.

    Args:
        cache: Cache whose data is checked too.
        python: Interpreter of the workers; None is each host's configured one.
        config: As for `open_session`; so is `via`.
        via: SSH host through which everything is reached.

    Raises:
        ConfigError: The configuration cannot be read.
        CacheNotFound: There is no such cache.
    """
    found = configuration(config, via)
    return examine(cluster_that_runs(found), found, reach_of(found), cache, python)
