"""Where a notebook's answers go: text to the cell's stream, tables and messages as HTML beside it."""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.session.files import CopyProgress
from ignite_tf_magic.ui.fs_commands import bar_after_a_while
from ignite_tf_magic.ui.render import View, size_text
from ignite_tf_magic.serialization.terminal_text import coloured, visible

_MAX_SHOWN_BYTES = 1024 * 1024


def write(text: str) -> None:
    """Write text as it is, at once."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def write_through(text: str) -> None:
    """Write text past the copy that IPython keeps of all that a cell prints: it would grow with a run's output.

    For that copy `InteractiveShell` sets another `write` on the stream itself, while a cell runs.
    """
    if text:
        type(sys.stdout).write(sys.stdout, text)
        sys.stdout.flush()


def say(line: str) -> None:
    """Write a line of ours, in which names of others stand."""
    write(f"{visible(line)}\n")


def show(view: View) -> None:
    """Show a table or a message, as HTML where that can be shown."""
    from IPython.display import display

    display(view.bundle(), raw=True)


def picture_bundle(png: bytes, text: str) -> dict[str, str]:
    """Give a picture as a MIME bundle, with words for a front end that shows none."""
    return {"image/png": base64.b64encode(png).decode(), "text/plain": text}


def show_picture(png: bytes | None, text: str = "a chart") -> None:
    """Show a picture; None shows nothing."""
    from IPython.display import display

    if png is not None:
        display(picture_bundle(png, text), raw=True)


class NotebookScreen:
    """The screen of a notebook, for `run_fs`. Of long content it shows the beginning."""

    own_name = "%ignite_tf"
    mounts_in_background = True

    def __init__(self) -> None:
        self._left_bytes = _MAX_SHOWN_BYTES
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(self, view: View) -> None:
        """Show a table."""
        show(view)

    def say(self, line: str) -> None:
        """Print a line of the answer."""
        say(line)

    def note(self, line: str) -> None:
        """Print a line beside the answer."""
        say(line)

    def write(self, data: memoryview) -> None:
        """Print content, as far as there is room for it."""
        write(coloured(self._decoder.decode(data[: self._left_bytes])))
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ConfigError(
                f"these are the first {size_text(_MAX_SHOWN_BYTES)}; copy the file: %ignite_tf fs get"
            )

    @contextmanager
    def progress(self) -> Iterator[CopyProgress | None]:
        """Show how far copying has come."""
        from rich.console import Console

        with bar_after_a_while(Console()) as progress:
            yield progress
