"""Converts a program's terminal colours to HTML without scripts, in the colours of the widgets' `ansi.js`. Pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ignite_tf_magic.serialization.terminal_text import coloured, plain

if TYPE_CHECKING:
    from rich.color import Color
    from rich.style import Style

# Legible on light and dark backgrounds. Bright colours use the same values, except bright black, which is grey.
_COLOURS = ("#555555", "#e53935", "#43a047", "#fb8c00", "#1e88e5", "#8e24aa", "#00acc1", "#9e9e9e")
_BRIGHT_BLACK, _NUM_NAMED = 8, 16


def coloured_html(line: str) -> str:
    """Return a line of a program's output as HTML: colours and font styles as spans, without other escape codes."""
    if "\x1b" not in line:
        return escape(plain(line))
    from rich.text import Text

    text, made, end = Text.from_ansi(coloured(line).replace("\r", "")), [], 0
    for span in text.spans:  # in order, without overlaps
        words, style = escape(text.plain[span.start : span.end]), ";".join(_css(span.style))
        made += [
            escape(text.plain[end : span.start]),
            f'<span style="{style}">{words}</span>' if style else words,
        ]
        end = span.end
    return "".join([*made, escape(text.plain[end:])])


def _css(style: str | Style) -> list[str]:
    if isinstance(style, str):
        return []
    found = [
        css
        for is_so, css in (
            (style.bold, "font-weight:bold"),
            (style.italic, "font-style:italic"),
            (style.underline, "text-decoration:underline"),
        )
        if is_so
    ]
    return found + ([f"color:{_hex(style.color)}"] if style.color and not style.color.is_default else [])


def _hex(colour: Color) -> str:
    if colour.number is not None and colour.number < _NUM_NAMED:
        return "#808080" if colour.number == _BRIGHT_BLACK else _COLOURS[colour.number % len(_COLOURS)]
    return colour.get_truecolor().hex
