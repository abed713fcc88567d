"""What a person does: connect, load, start a script beside the data, watch it, stop it. The API of `facade`.

Names resolve on first use, so that a worker that leaves a result does not load what starts runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignite_tf_magic.session.facade import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.facade"), name)
