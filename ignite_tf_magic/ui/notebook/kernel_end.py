"""The end of a kernel that is asked to end: it leaves its runs to the next one at once."""

from __future__ import annotations

from typing import Any

from ignite_tf_magic import session


def let_go_at_shutdown(kernel: Any) -> None:
    """Have runs let go of when a kernel is asked to end, not when it does: a stuck cell keeps it, and SIGTERM follows.

    `do_shutdown` is what ipykernel has its kernels override. It is called beside the busy cell, on the control thread.
    """
    shut_down = getattr(kernel, "do_shutdown", None)
    if shut_down is None:  # no kernel, or not ipykernel's
        return

    def do_shutdown(restart: bool) -> Any:
        session.begin_to_let_go_of_runs()
        return shut_down(restart)

    kernel.do_shutdown = do_shutdown
