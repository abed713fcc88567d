"""Releases a kernel's runs to the next kernel as soon as the kernel is asked to shut down."""

from __future__ import annotations

from typing import Any

from ignite_tf_magic import session


def let_go_at_shutdown(kernel: Any) -> None:
    """Make a kernel release its runs at the shutdown request, not at its end.

    A stuck cell can delay the end, and then SIGTERM follows. ipykernel calls `do_shutdown`, which subclasses may
    override, on the control thread while a cell is busy.
    """
    shut_down = getattr(kernel, "do_shutdown", None)
    if shut_down is None:  # there is no kernel, or it is not from ipykernel
        return

    def do_shutdown(restart: bool) -> Any:
        session.begin_to_let_go_of_runs()
        return shut_down(restart)

    kernel.do_shutdown = do_shutdown
