"""The doctor's look at all that runs need, without a session, also while Ignite is down."""

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
    return examine(cluster_that_runs(found), found, reach_of(found), cache, python)
