"""A node for a benchmark, deleted with its data when the benchmark ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.settings.options import ConnectOptions


@contextmanager
def node_of_its_own(name: str, options: EmbeddedOptions) -> Iterator[ConnectOptions]:
    """Start an embedded cluster, and yield its connect options."""
    home = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    try:
        yield ensure_up(options, Lifetime.UNTIL_IDLE, home=home).cluster.connect_options
    finally:
        down(home, delete_data=True)
