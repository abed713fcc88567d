"""Passwords and certificates given to a dataset, for readers of the same process: names of record files carry none.

Such a name has a token instead, which means something in the process that made it, and nothing anywhere else.
"""

from __future__ import annotations

import threading
import uuid
from typing import NamedTuple


class Given(NamedTuple):
    """As the arguments of `IgniteDataset`."""

    username: str | None = None
    password: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    cert_password: str | None = None


_kept: dict[str, Given] = {}
_lock = threading.Lock()


def keep(given: Given) -> str:
    """Keep them as long as the process lives, as graphs do; gives their token, the same for the same ones."""
    with _lock:
        for token, known in _kept.items():
            if known == given:
                return token
        token = uuid.uuid4().hex
        _kept[token] = given
        return token


def find(token: str | None) -> Given | None:
    """Return what was kept; None in another process than that which kept it."""
    return _kept.get(token) if token else None
