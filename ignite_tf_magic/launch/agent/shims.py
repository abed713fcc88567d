"""Starts a shim from a relay, and reads its report."""

from __future__ import annotations

import json
import os
import select
import sys

from ignite_tf_magic.launch.agent.disk import Refused
from ignite_tf_magic.launch.agent.processes import JOB_MARK, KEEPER_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FIRST_FREE_DESCRIPTOR = 10
# The relay's loader has checked the file and its compiled form. Python imports no other file from its directory.
SHIM_CODE = (
    "import sys,_frozen_importlib_external as z;_,k,p,f,a=sys.argv;g={'__name__':k};"
    "exec(z.SourceFileLoader(k,p).get_code(k),g);g[f](a)"
)


def start_shim(
    root: str, digest: str, function: str, argument: str, nonce: str, descriptors: tuple[int, ...]
) -> None:
    """Run a function of the agent as a daemon, whose descriptors from 0 on are copies of these."""
    agent = f"{root}/agents/{digest}.py"
    if not os.path.exists(agent):
        raise Refused("disk_full", f"the disk of {root} had no room for the agent")
    argv = [sys.executable, "-I", "-S", "-c", SHIM_CODE, digest, agent, function, argument]
    high = [_moved_up(descriptor) for descriptor in descriptors]
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(high)]
    try:
        pid = os.posix_spawn(
            sys.executable, argv, {**own_environment(), KEEPER_MARK: nonce}, file_actions=actions
        )
    finally:
        for descriptor in high:
            os.close(descriptor)
    os.waitpid(pid, 0)


def own_environment() -> dict[str, str]:
    """Return this process's environment without the marks of shims and jobs."""
    return {name: value for name, value in os.environ.items() if name not in (JOB_MARK, KEEPER_MARK)}


def report_of(give: Callable[[int], None], timeout_s: float | None = None) -> dict[str, Any] | None:
    """Return what a shim reports through a descriptor that `give` passes to it.

    Return None if the shim ended or timed out without reporting. After a timeout the caller must check what still runs.
    """
    told, tell = os.pipe()
    with open(told, "rb") as file:
        try:
            give(tell)
        finally:
            os.close(tell)
        poller = select.poll()
        poller.register(file, select.POLLIN)
        if timeout_s is not None and not poller.poll(timeout_s * 1000):
            return None
        return json.loads(file.readline() or b"null")  # type: ignore[no-any-return]


def _moved_up(descriptor: int) -> int:
    """Duplicate a descriptor to a number that no file action of a spawn overwrites."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR)
