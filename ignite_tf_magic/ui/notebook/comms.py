"""Lets widgets and front ends exchange messages while a cell is busy.

If both the kernel and the front end support subshells, the kernel handles messages at once. Widgets also send
heartbeats, which show the front end that the kernel is alive.
"""

from __future__ import annotations

import threading
from typing import Any

_ALIVE = {"kind": "alive"}
_BEAT_INTERVAL_S = 5.0


def hear_while_busy(*widgets: Any) -> None:
    """Make the kernel handle messages to these widgets in the subshell to which the front end sends them.

    ipykernel 7.4 passes them to the shell that used the widget last, whose cell is busy. Front ends with subshells,
    such as JupyterLab from 4.4 on, send them to another one. Messages of other front ends wait for the cell's end.
    """
    for widget in widgets:
        widget.comm._reply_subshell_for = _as_sent


def beat(widget: Any, ended: threading.Event) -> None:
    """Send heartbeats, which `connection.js` expects, until `ended` is set or the widget is closed."""

    def go_on() -> None:
        while (comm := widget.comm) is not None:  # closing a widget removes its comm
            comm.send({"method": "custom", "content": _ALIVE})
            if ended.wait(_BEAT_INTERVAL_S):
                return

    threading.Thread(target=go_on, name="ignite-tf-beat", daemon=True).start()


def _as_sent(_: Any, subshell_id: str | None) -> str | None:
    return subshell_id
