"""What front ends and widgets send each other while a cell is busy.

Front ends are heard at once, where kernel and front end know subshells; and they hear that the kernel is there.
"""

from __future__ import annotations

import threading
from typing import Any

_ALIVE = {"kind": "alive"}
_BEAT_INTERVAL_S = 5.0


def hear_while_busy(*widgets: Any) -> None:
    """Have messages of front ends handled in the subshell to which they are sent.

    ipykernel 7.4 hands them to the shell that has used the widget last: to the one whose cell is busy. Front ends that
    know subshells, as JupyterLab from 4.4 on, send them to another; others are heard when the cell has ended.
    """
    for widget in widgets:
        widget.comm._reply_subshell_for = _as_sent


def beat(widget: Any, ended: threading.Event) -> None:
    """Let the front end hear, until it has ended, that its kernel is there: `connection.js` waits for it."""

    def go_on() -> None:
        while (comm := widget.comm) is not None:  # closing a widget takes its comm away
            comm.send({"method": "custom", "content": _ALIVE})
            if ended.wait(_BEAT_INTERVAL_S):
                return

    threading.Thread(target=go_on, name="ignite-tf-beat", daemon=True).start()


def _as_sent(_: Any, subshell_id: str | None) -> str | None:
    return subshell_id
