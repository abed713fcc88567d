"""The thin client: sockets, topology, page streams, bulk load. Start with `connect`.

The names below are imported on first use. So code that rarely needs a cluster does not load the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignite_tf_magic.client.client import Cache as Cache
    from ignite_tf_magic.client.client import Client as Client
    from ignite_tf_magic.client.client import connect as connect
    from ignite_tf_magic.protocol.messages import CacheConfig as CacheConfig

_HOME_OF_NAME = {
    "Cache": "client.client",
    "CacheConfig": "protocol.messages",
    "Client": "client.client",
    "connect": "client.client",
}
__all__ = ["Cache", "CacheConfig", "Client", "connect"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ignite_tf_magic.{_HOME_OF_NAME[name]}"), name)
