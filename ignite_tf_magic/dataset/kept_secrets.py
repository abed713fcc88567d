"""Keeps passwords and certificates passed to a dataset out of the names of its record files.

Such a name carries a token instead, which only the process that made it can resolve.
"""

from __future__ import annotations

import threading
import uuid
from typing import NamedTuple


class Given(NamedTuple):
    """The secrets, as the arguments of `IgniteDataset`."""

    username: str | None = None
    password: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    cert_password: str | None = None


_kept: dict[str, Given] = {}
_lock = threading.Lock()


def keep(given: Given) -> str:
    """Keep secrets until the process ends, and return their token.

    Graphs last as long. Equal secrets get the same token.
    """
    with _lock:
        for token, known in _kept.items():
            if known == given:
                return token
        token = uuid.uuid4().hex
        _kept[token] = given
        return token


def find(token: str | None) -> Given | None:
    """Return the secrets of a token; None in any process but the one that kept them."""
    return _kept.get(token) if token else None
