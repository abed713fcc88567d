"""The rendezvous of JAX's and PyTorch's workers, by the addresses that the run has given to its workers.

Workers have the variables of `torchrun` (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), by which
`torch.distributed.init_process_group()` needs no arguments; here `jax.distributed.initialize()` learns to need none
either. Standard library only; called when one of the two has been imported.
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
    if hasattr(distributed, "init_process_group"):  # not where it is built without
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
    """Let the run know that this worker is there, as the first one will by listening for the others.

    The run knocks at each worker's port: who waits in vain for another that never comes to this is told so.
    """
    if os.environ.get(TUNNEL) and os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE"):
        raise RuntimeError(
            "--tunnel carries TensorFlow's connections alone: JAX and PyTorch choose ports of their own for tensors, "
            "which it knows nothing of. Leave it out, or have all workers on one host: --hosts NAME"
        )
    own = os.environ.get("IGNITE_TF_ADDRESS", "")
    if not own:  # one worker alone, for which no port is kept
        os.environ.setdefault("MASTER_PORT", str(_free_port()))
    elif os.environ["RANK"] != "0" and not _announced:
        port = int(own.rpartition(":")[2])
        _announced.append(socket.create_server(("", port), reuse_port=hasattr(socket, "SO_REUSEPORT")))


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port
