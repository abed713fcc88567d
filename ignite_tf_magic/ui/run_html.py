"""Renders a run for a saved cell: its progress, a chart, and the last lines. Pure; the HTML works without scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ignite_tf_magic.serialization.terminal_text import plain
from ignite_tf_magic.ui.coloured_html import coloured_html
from ignite_tf_magic.ui.progress import Progress
from ignite_tf_magic.ui.render import state_colour

_BAR_CHARS = 24
_MOST_COLOURED_CHARS = 250_000  # more HTML than this is saved without colours, to keep notebooks small
_FONT = "font-size:var(--jp-ui-font-size1,13px);line-height:1.5"
_PRE = (
    "margin:4px 0;max-height:24em;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;background:none;"
    "color:inherit"
)


@dataclass(frozen=True, slots=True)
class RunPicture:
    """The visible state of a run.

    Attributes:
        title: The name of the run; empty before there is a run.
        png: The chart of its training as a picture, if there is one.
        chart: HTML of the same chart, interactive, which replaces the picture where scripts may run.
        tail: The last lines of its output; empty if the cell shows the output as text.
        num_lines: The number of all lines of output.
        whole: The command that shows all output.
    """

    title: str
    progress: Progress
    png: bytes | None = None
    chart: str = ""
    tail: Sequence[str] = ()
    num_lines: int = 0
    whole: str = ""

    def bundle(self) -> dict[str, str]:
        """Return a MIME bundle for front ends that show HTML, only pictures, or only text."""
        found = {"text/plain": self._text(), "text/html": self._html()}
        if self.png is not None:
            found["image/png"] = base64.b64encode(self.png).decode()
        return found

    def _text(self) -> str:
        head = " ".join(filter(None, [self.title, _bar(self.progress.share), self.progress.words]))
        return "\n".join([head, *map(plain, self.tail)])

    def _html(self) -> str:
        colour, share = state_colour(self.progress.state), self.progress.share
        dot = f'<span style="color:{colour}">\u25cf</span>'
        head = f"<div>{dot} <b>{escape(self.title)}</b> {escape(self.progress.words)}</div>"
        bar = ""
        if share is not None:
            inner = f'<div style="height:4px;width:{100 * share:.1f}%;background:{colour}"></div>'
            bar = f'<div style="height:4px;margin:4px 0;background:rgba(128,128,128,0.2)">{inner}</div>'
        picture = "" if self.png is None else _image(self.png, self.progress.words, self.chart)
        return (
            f'<div style="{_FONT};border-left:4px solid {colour};padding:2px 0 2px 10px">'
            f"{head}{bar}{picture}{self._tail_html()}</div>"
        )

    def _tail_html(self) -> str:
        if not self.tail:
            return ""
        text = "\n".join(map(coloured_html, self.tail))
        if len(text) > _MOST_COLOURED_CHARS:
            text = escape("\n".join(map(plain, self.tail)))
        shown, more = len(self.tail), self.num_lines > len(self.tail)
        title = f"{shown:,} line{'s' * (shown != 1)} of output"
        if more:
            title = f"the last {shown:,} of {self.num_lines:,} lines; all: {self.whole}"
        return f'<details open><summary>{escape(title)}</summary><pre style="{_PRE}">{text}</pre></details>'


def picture_bundle(png: bytes, text: str, chart: str = "") -> dict[str, str]:
    """Return a picture as a MIME bundle, with a text for front ends without pictures.

    Args:
        png: The picture.
        text: A description of the picture.
        chart: HTML of a chart that replaces the picture where scripts may run.
    """
    found = {"image/png": base64.b64encode(png).decode(), "text/plain": text}
    if chart:
        found["text/html"] = _image(png, text, chart)
    return found


def _image(png: bytes, text: str, chart: str) -> str:
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">{chart}'


def _bar(share: float | None) -> str:
    if share is None:
        return ""
    done = round(share * _BAR_CHARS)
    return f"[{'#' * done}{'.' * (_BAR_CHARS - done)}]"
