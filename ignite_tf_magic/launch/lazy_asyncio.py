"""asyncio, imported on first use, so that a command that contacts no host starts without it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["asyncio"]

if TYPE_CHECKING:
    import asyncio
else:

    class _AsyncioOnUse:
        def __getattr__(self, name: str) -> Any:
            attribute = getattr(import_module("asyncio"), name)
            setattr(self, name, attribute)
            return attribute

    asyncio = _AsyncioOnUse()
