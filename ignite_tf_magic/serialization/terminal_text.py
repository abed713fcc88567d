"""Makes untrusted text safe for a terminal: it cannot move the cursor, set a title or hide a word.

Terminal commands begin with a control character. Some other characters reverse the direction of writing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

# C0 without tab and newline, DEL, C1, separators of lines, and characters that change the direction of writing.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLOUR = r"\x1b\[[0-9;:]*m"
_SEQUENCES = re.compile(
    rf"({_COLOUR})"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: the cursor, the screen
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: the title, the clipboard, links
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b(?![\[\]PX^_])[ -/]*[0-~]"
)
_LAST_COLOUR = re.compile(rf"{_COLOUR}(?!.*{_COLOUR})", re.DOTALL)
_MAX_LINE_CHARS = 1 << 20
_RESET = "\x1b[0m"
_RESETS = ("\x1b[0m", "\x1b[m", "\x1b[00m")


def visible(text: str) -> str:
    r"""Escape control characters as \x1b and the like; newlines and tabs stay."""
    return _ORDERS.sub(_written, text)


def visible_line(text: str) -> str:
    """Escape control characters, newlines and tabs: a name or a value stays on its line."""
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def coloured(text: str) -> str:
    r"""Keep the colours, newlines, tabs and "\r" of a program's output; remove or escape other terminal commands.

    The text ends with a reset if it leaves a colour on: later text is not coloured.
    """
    if not _ORDERS.search(text):
        return text
    kept = "".join(_kept(piece) for piece in _SEQUENCES.split(text) if piece)
    last = _LAST_COLOUR.search(kept)
    return kept if last is None or last[0] in _RESETS else kept + _RESET


def echo(line: object = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line of this program with the control characters of names and values in it escaped."""
    print(visible(str(line)), file=file or sys.stdout, flush=flush)


def whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text cut only after newlines: no terminal command is in two pieces.

    Lines of more than a million characters are cut, too.
    """
    rest = ""
    for piece in pieces:
        lines, newline, behind = (rest + piece).rpartition("\n")
        if lines or newline:
            yield lines + newline
        rest = behind
        if len(rest) > _MAX_LINE_CHARS:
            yield rest
            rest = ""
    if rest:
        yield rest


def plain(text: str) -> str:
    """Remove all terminal commands, including colours, from a program's output. Escape other control characters."""
    return visible(_SEQUENCES.sub("", text).replace("\r", ""))


def _kept(piece: str) -> str:
    if re.fullmatch(_COLOUR, piece):
        return piece
    return _ORDERS.sub(lambda found: "\r" if found[0] == "\r" else _written(found), piece)


def _written(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
