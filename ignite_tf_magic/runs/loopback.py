"""Makes the ports of a run's tasks reachable only from their own machine, with a preloaded library: `_loopback.c`.

Servers of TensorFlow, JAX and PyTorch listen on all interfaces without authentication. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path

PORTS = "IGNITE_TF_LOOPBACK_PORTS"
PRELOAD = "LD_PRELOAD"
TUNNEL = "IGNITE_TF_TUNNEL"  # set for runs with --tunnel, which fail without this protection
# Libraries that choose their own ports for tensors, and the network interface for these ports.
_INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_HERE = Path(__file__).resolve().parent
_INSIDE = "ignite_tf_magic/runs"


@cache
def library() -> str | None:
    """Return the path of the library for programs like this one; None on other systems than Linux or if not built."""
    if sys.platform != "linux":
        return None
    kind = _kind_of(Path("/proc/self/exe"))
    # Ignore Python's own file suffix: the library works with any version.
    return next((str(path) for path in sorted(_HERE.glob("_loopback*.so")) if _kind_of(path) == kind), None)


def path_in(parcel: str) -> str | None:
    """Return the library's path on a host of the same kind, inside the unpacked package; None if there is none."""
    found = library()
    return None if found is None else f"{parcel}/{_INSIDE}/{Path(found).name}"


def may_be_loaded(path: str, platform: str, machine: str) -> bool:
    """Return whether a host of this platform and machine can load this machine's library from the path."""
    is_alike = (platform, machine) == (sys.platform, os.uname().machine)
    return is_alike and not {" ", ":"} & set(path)  # the loader splits names at these


def keeps(port: int) -> bool:
    """Return whether servers in this process that bind a port on all interfaces get it on 127.0.0.1 only."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the task's shim holds the port
        try:
            probe.bind(("", port))
        except OSError:  # taken: the server fails to listen too, and reports that itself
            return True
        return bool(probe.getsockname()[0] == "127.0.0.1")


def prefer_loopback(environment: MutableMapping[str, str]) -> None:
    """Make libraries that choose their own ports listen at 127.0.0.1 only, unless the user names an interface."""
    for name, interface in _INTERFACES.items():
        environment.setdefault(name, interface)


def joined(first: str | None, second: str | None) -> str | None:
    """Return the value of LD_PRELOAD that loads the libraries of both, each once."""
    names = [name for each in (first, second) if each for name in each.replace(" ", ":").split(":") if name]
    return ":".join(dict.fromkeys(names)) or None


def _kind_of(path: Path) -> bytes:
    """Return the architecture that a binary is for: word size, byte order, machine."""
    with path.open("rb") as file:
        header = file.read(20)
    return header[4:6] + header[18:20]
