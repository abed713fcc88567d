"""What front ends send to widgets while a cell is busy: heard at once, where kernel and front end know subshells."""

from __future__ import annotations

from typing import Any


def hear_while_busy(*widgets: Any) -> None:
    """Have messages of front ends handled in the subshell to which they are sent.

    ipykernel 7.4 hands them to the shell that has used the widget last: to the one whose cell is busy. Front ends that
    know subshells, as JupyterLab from 4.4 on, send them to another; others are heard when the cell has ended.
    """
    for widget in widgets:
        widget.comm._reply_subshell_for = _as_sent


def _as_sent(_: Any, subshell_id: str | None) -> str | None:
    return subshell_id
