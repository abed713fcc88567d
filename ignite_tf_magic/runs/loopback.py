"""Keeps ports of a run's tasks to their own machine, by a library that workers load before all others: `_loopback.c`.

Servers of TensorFlow, JAX and PyTorch listen on all interfaces, and ask nobody who he is. Standard library only.
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
TUNNEL = "IGNITE_TF_TUNNEL"  # set where a run may not do without: it has --tunnel
# Those who choose ports of their own for tensors, and the interface at which they do.
_INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_HERE = Path(__file__).resolve().parent
_INSIDE = "ignite_tf_magic/runs"


@cache
def library() -> str | None:
    """Return the path of the library for programs as this one; None where there is none: no Linux, or no compiler."""
    if sys.platform != "linux":
        return None
    kind = _kind_of(Path("/proc/self/exe"))
    # Not by Python's own suffix: it serves any version.
    return next((str(path) for path in sorted(_HERE.glob("_loopback*.so")) if _kind_of(path) == kind), None)


def path_in(parcel: str) -> str | None:
    """Return where the library lies on a host of the same kind, in the unpacked package; None where there is none."""
    found = library()
    return None if found is None else f"{parcel}/{_INSIDE}/{Path(found).name}"


def may_be_loaded(path: str, platform: str, machine: str) -> bool:
    """Tell whether a host can have the library of this machine loaded from there."""
    is_alike = (platform, machine) == (sys.platform, os.uname().machine)
    return is_alike and not {" ", ":"} & set(path)  # which the loader takes for the end of a name


def keeps(port: int) -> bool:
    """Tell whether a server in this process that wants a port on all interfaces gets it on this machine's own alone."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the task's shim holds the port
        try:
            probe.bind(("", port))
        except OSError:  # taken, as the server itself will say, which then listens nowhere
            return True
        return bool(probe.getsockname()[0] == "127.0.0.1")


def prefer_loopback(environment: MutableMapping[str, str]) -> None:
    """Have also those listen at 127.0.0.1 alone who choose their ports themselves, unless the user says where."""
    for name, interface in _INTERFACES.items():
        environment.setdefault(name, interface)


def joined(first: str | None, second: str | None) -> str | None:
    """Return the value of LD_PRELOAD that loads both, what both name once."""
    names = [name for each in (first, second) if each for name in each.replace(" ", ":").split(":") if name]
    return ":".join(dict.fromkeys(names)) or None


def _kind_of(path: Path) -> bytes:
    """Return what tells programs of one architecture from those of others: word size, byte order, machine."""
    with path.open("rb") as file:
        header = file.read(20)
    return header[4:6] + header[18:20]
