"""Lets JAX's and PyTorch's workers find each other by the addresses that the run assigns to its workers.

Workers have the environment variables of `torchrun` (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). With
them, `torch.distributed.init_process_group()` needs no arguments. This module does the same for
`jax.distributed.initialize()`. It is called after one of the two has been imported, and uses the standard library only.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from ignite_tf_magic.runs.loopback import TUNNEL

_LOOPBACK = "127.0.0.1"
_announced: list[socket.socket] = []


def install_jax() -> None:
    """Prepare JAX, which has just been imported."""
    distributed = sys.modules["jax"].distributed
    distributed.initialize = _knowing_its_place(distributed.initialize)


def install_torch() -> None:
    """Prepare torch.distributed, which has just been imported."""
    distributed: Any = sys.modules["torch.distributed"]
    if hasattr(distributed, "init_process_group"):  # missing if torch is built without it
        distributed.init_process_group = _announcing(distributed.init_process_group)


def _knowing_its_place(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def initialize(
        coordinator_address: Any = None,
        num_processes: Any = None,
        process_id: Any = None,
        *others: Any,
        **named: Any,
    ) -> Any:
        if coordinator_address is None and num_processes is None and process_id is None:
            _join()
            host = os.environ["MASTER_ADDR"]
            coordinator_address = f"{f'[{host}]' if ':' in host else host}:{os.environ['MASTER_PORT']}"
            num_processes, process_id = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        return original(coordinator_address, num_processes, process_id, *others, **named)

    return initialize


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*given: Any, **named: Any) -> Any:
        _join()
        return original(*given, **named)

    return init_process_group


def _join() -> None:
    """Show the run that this worker has reached the rendezvous, by listening on its port.

    The run probes each worker's port, and reports workers that wait for one that never arrives. The first worker
    listens anyway, for the others.

    Raises:
        RuntimeError: The run uses --tunnel, and its workers are on several hosts.
    """
    if os.environ.get(TUNNEL) and os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE"):
        raise RuntimeError(
            "--tunnel forwards only TensorFlow's connections: JAX and PyTorch choose their own ports for "
            "tensors, which are not forwarded. Leave it out, or have all workers on one host: --hosts NAME"
        )
    own = os.environ.get("IGNITE_TF_ADDRESS", "")
    if not own:  # a single worker, for which no port is reserved
        os.environ.setdefault("MASTER_PORT", str(_free_port()))
    elif os.environ["RANK"] != "0" and not _announced:
        port = int(own.rpartition(":")[2])
        _announced.append(socket.create_server(("", port), reuse_port=hasattr(socket, "SO_REUSEPORT")))


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port
