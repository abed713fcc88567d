"""The embedded cluster: Ignite nodes on this machine."""

from __future__ import annotations

from collections.abc import Callable

from ignite_tf_magic import embedded
from ignite_tf_magic.embedded import ClusterStopped, EmbeddedCluster, EmbeddedOptions
from ignite_tf_magic.settings.options import ConnectOptions

Report = Callable[[str], None]


def start_embedded(report: Report) -> ConnectOptions:
    """Start the embedded cluster, which stops when idle, unless it runs; return how to reach it.

    Raises:
        EmbeddedError: The cluster cannot be started.
    """
    running = embedded.status()
    is_up = running is not None and running.ready and all(node.alive for node in running.nodes)
    up = embedded.ensure_up(lifetime=embedded.Lifetime.UNTIL_IDLE, report=_unsaid if is_up else report)
    return up.cluster.connect_options


def _unsaid(line: str) -> None:
    del line


def local_up(options: EmbeddedOptions, *, report: Report) -> EmbeddedCluster:
    """Start the embedded nodes, or use the running ones; they stay until `local_down`. Blocks until ready.

    Raises:
        EmbeddedError: The nodes cannot be started.
    """
    return embedded.ensure_up(options, embedded.Lifetime.UNTIL_DOWN, report=report).cluster


def local_status() -> EmbeddedCluster | None:
    """Return the state of the embedded nodes; None if there are none. Never blocks."""
    return embedded.status()


def local_down(*, delete_data: bool = False, report: Report) -> ClusterStopped | None:
    """Stop the embedded nodes; None if there were none. `delete_data` also removes their persisted data."""
    outcome = embedded.down(delete_data=delete_data, report=report)
    return outcome if isinstance(outcome, ClusterStopped) else None
