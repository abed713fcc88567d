"""Renders an object in a notebook as a title and a few facts. All text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ignite_tf_magic.serialization.terminal_text import visible_line

_CELL = "text-align:left;white-space:nowrap;padding:1px 12px 1px 4px"


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Return HTML with a table of facts below a title. Empty facts are left out."""
    rows = "".join(
        f'<tr><td style="{_CELL}">{escape(name)}</td><td style="{_CELL}">{escape(visible_line(value))}</td></tr>'
        for name, value in facts.items()
        if value
    )
    return f'<div><b>{escape(visible_line(title))}</b><table style="margin:4px 0">{rows}</table></div>'
