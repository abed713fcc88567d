"""Runs real Apache Ignite nodes on this machine; pip installs everything that they need.

Names are imported on first use, so that the guardian loads only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignite_tf_magic.embedded.lifecycle import (
        ClusterReused,
        ClusterStarted,
        ClusterStopped,
        NothingRunning,
        down,
        ensure_up,
        status,
    )
    from ignite_tf_magic.embedded.options import EmbeddedOptions, Lifetime, NodeTls
    from ignite_tf_magic.embedded.record import EmbeddedCluster, EmbeddedNode

_HOMES = {
    "lifecycle": (
        "ClusterReused",
        "ClusterStarted",
        "ClusterStopped",
        "NothingRunning",
        "down",
        "ensure_up",
        "status",
    ),
    "options": ("EmbeddedOptions", "Lifetime", "NodeTls"),
    "record": ("EmbeddedCluster", "EmbeddedNode"),
}

__all__ = [
    "ClusterReused",
    "ClusterStarted",
    "ClusterStopped",
    "EmbeddedCluster",
    "EmbeddedNode",
    "EmbeddedOptions",
    "Lifetime",
    "NodeTls",
    "NothingRunning",
    "down",
    "ensure_up",
    "status",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
