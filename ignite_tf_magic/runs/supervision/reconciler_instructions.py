"""Instructions for a host's reconciler when it is started: a private file of the run's directory, sent over SSH."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint, read_credentials, tls_options

INSTRUCTIONS = "reconciler.json"


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a reconciler is told when it is started.

    Attributes:
        host: Name of its host in the run's record.
        endpoints: Ignite's nodes, its own host's first.
        python_path: Where workers find this package.
        has_credentials: Whether they lie in the run's directory.
        is_here: Whether the run was started on this machine.
        scale: By how much all waiting times are shortened.
    """

    host: str
    endpoints: tuple[str, ...]
    python_path: str | None = None
    has_credentials: bool = False
    is_here: bool = False
    scale: float = 1.0

    def to_text(self) -> str:
        """Return what `read` reads."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def read(cls, path: Path) -> Instructions:
        """Read what `to_text` gave."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**found, "endpoints": tuple(found["endpoints"])})


def connect_options(instructions: Instructions, directory: RunDirectory) -> ConnectOptions:
    """Say how this host reaches the cluster."""
    named = read_credentials(directory.credentials) if instructions.has_credentials else {}
    return ConnectOptions(
        endpoints=tuple(Endpoint.parse(each) for each in instructions.endpoints),
        username=named.get("username"),
        password=named.get("password"),
        tls=tls_options(named),
        timeout_s=10.0,
    )
