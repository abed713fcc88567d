"""The embedded cluster: Ignite nodes on this machine."""

from __future__ import annotations

from collections.abc import Callable

from ignite_tf_magic import embedded
from ignite_tf_magic.embedded import ClusterStopped, EmbeddedCluster, EmbeddedOptions
from ignite_tf_magic.settings.options import ConnectOptions

Report = Callable[[str], None]


def start_embedded(report: Report) -> ConnectOptions:
    """Start the embedded cluster until it is idle, unless it runs; says how to reach it.

    Raises:
        EmbeddedError: It cannot be started.
    """
    running = embedded.status()
    is_up = running is not None and running.ready and all(node.alive for node in running.nodes)
    up = embedded.ensure_up(lifetime=embedded.Lifetime.UNTIL_IDLE, report=_unsaid if is_up else report)
    return up.cluster.connect_options


def _unsaid(line: str) -> None:
    del line


def local_up(options: EmbeddedOptions, *, report: Report) -> EmbeddedCluster:
    """Start the embedded nodes, or use those that run; they stay until `local_down`. Blocks until ready.

    Raises:
        EmbeddedError: They cannot be started.
    """
    return embedded.ensure_up(options, embedded.Lifetime.UNTIL_DOWN, report=report).cluster


def local_status() -> EmbeddedCluster | None:
    """Look at the embedded nodes; None when there are none. Never blocks."""
    return embedded.status()


def local_down(*, delete_data: bool = False, report: Report) -> ClusterStopped | None:
    """Stop the embedded nodes; None when there were none. `delete_data` removes also what they persisted."""
    outcome = embedded.down(delete_data=delete_data, report=report)
    return outcome if isinstance(outcome, ClusterStopped) else None
