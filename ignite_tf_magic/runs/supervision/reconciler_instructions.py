"""The instructions that start a host's reconciler: a private file in the run's directory, sent over SSH."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint, read_credentials, tls_options

INSTRUCTIONS = "reconciler.json"


@dataclass(frozen=True, slots=True)
class Instructions:
    """The instructions of a reconciler.

    Attributes:
        host: Name of its host in the run's record.
        endpoints: Ignite's nodes, its own host's first.
        python_path: Where workers find this package.
        has_credentials: Whether the run's directory contains credentials.
        is_here: Whether the run was started on this machine.
        scale: Divisor of all timeouts.
    """

    host: str
    endpoints: tuple[str, ...]
    python_path: str | None = None
    has_credentials: bool = False
    is_here: bool = False
    scale: float = 1.0

    def to_text(self) -> str:
        """Return the content of the instructions file, for `read`."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def read(cls, path: Path) -> Instructions:
        """Read an instructions file."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**found, "endpoints": tuple(found["endpoints"])})


def connect_options(instructions: Instructions, directory: RunDirectory) -> ConnectOptions:
    """Return the options with which this host connects to the cluster."""
    named = read_credentials(directory.credentials) if instructions.has_credentials else {}
    return ConnectOptions(
        endpoints=tuple(Endpoint.parse(each) for each in instructions.endpoints),
        username=named.get("username"),
        password=named.get("password"),
        tls=tls_options(named),
        timeout_s=10.0,
    )
