"""The screen of a notebook: text goes to the cell's stream, and tables and messages are HTML outputs."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization.terminal_text import coloured, visible
from ignite_tf_magic.ui.assets import kept_chart
from ignite_tf_magic.ui.drafts import magic_cell
from ignite_tf_magic.ui.notebook.arguments import NAME
from ignite_tf_magic.ui.notebook.panel import runs_panel
from ignite_tf_magic.ui.notebook.run_area import CellArea
from ignite_tf_magic.ui.notebook.run_widget import WidgetRunView, shows_widgets
from ignite_tf_magic.ui.render import View, size_text, tensorboard_view
from ignite_tf_magic.ui.run_html import picture_bundle
from ignite_tf_magic.ui.screen import RunView, bytes_bar, rows_bar, rows_counter
from ignite_tf_magic.ui.text_run_view import TextRunView

if TYPE_CHECKING:
    from ignite_tf_magic.session import LoadProgress, QueryProgress
    from ignite_tf_magic.session.files import CopyProgress
    from ignite_tf_magic.session.tensorboards import TensorBoardInfo

_MAX_SHOWN_BYTES = 1024 * 1024
# Jupyter's server drops the output of a kernel that writes more than 1 MB/s for some seconds.
_MAX_CHARS_PER_S = 800_000
_MAX_BURST_CHARS = 2_000_000


def write(text: str) -> None:
    """Write text unchanged and at once."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def say(line: str) -> None:
    """Write a line, with terminal control codes in names from others made visible."""
    write(f"{visible(line)}\n")


def show(view: View) -> None:
    """Show a table or a message, as HTML if the front end can."""
    from IPython.display import display

    display(view.bundle(), raw=True)


class NotebookScreen:
    """A screen in the running cell.

    Attributes:
        answer: The value that becomes the cell's result.
    """

    command_name = NAME
    outlives_commands = True
    last_lines: int | None = 200

    def __init__(self, variables: MutableMapping[str, Any]) -> None:
        """Use `variables` to read and set the notebook's variables."""
        self.answer: Any = None
        self._variables = variables
        self._left_bytes = _MAX_SHOWN_BYTES
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(self, view: View) -> None:
        """Show a table or a message."""
        show(view)

    def display(self, value: Any) -> None:
        """Show a value as the notebook shows it."""
        from IPython.display import display

        display(value)

    def say(self, line: str) -> None:
        """Print a line of the answer."""
        say(line)

    def note(self, line: str) -> None:
        """Print a line that accompanies the answer."""
        say(line)

    def write(self, data: memoryview) -> None:
        """Print the content of a file; raise `ConfigError` after 1 MiB."""
        write(coloured(self._decoder.decode(data[: self._left_bytes])))
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ConfigError(
                f"these are the first {size_text(_MAX_SHOWN_BYTES)}; copy the file: {NAME} fs get"
            )

    def show_end(self, view: View) -> None:
        """Show how a run ended, below its output."""
        show(view)

    def show_picture(
        self, draw: Callable[[], bytes | None], series: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Show the picture, if there is one; a front end with widgets shows an interactive chart instead."""
        from IPython.display import display

        if (png := draw()) is not None:
            chart = kept_chart(series()) if series and shows_widgets(this_kernel()) else ""
            display(picture_bundle(png, "a chart", chart), raw=True)

    def show_board(self, board: TensorBoardInfo, height_px: int) -> None:
        """Show the TensorBoard in a frame below the cell."""
        show(tensorboard_view(board, height_px))

    def write_cell(self, words: Sequence[str], script: str) -> None:
        """Insert the script as a new cell below."""
        from IPython.core.getipython import get_ipython

        get_ipython().set_next_input(magic_cell(words, script))

    def show_panel(self) -> None:
        """Make the panel's widget the cell's result."""
        self.answer = runs_panel()

    def keep(self, value: Any, name: str | None, what: str | None) -> None:
        """Set a variable; without a name, make the value the cell's result."""
        if name is None:
            self.answer = value
            return
        if not name.isidentifier():
            raise ConfigError(f"-o {name} is not the name of a variable")
        self._variables[name] = value
        if what:
            say(f"{name}: {what}")

    def show_rows(self, frame: Callable[[], Any], view: View) -> None:
        """Make the DataFrame the cell's result."""
        del view
        self.answer = frame()

    def variables(self, names: Sequence[str]) -> dict[str, Any]:
        """Return variables of the notebook; raise `ConfigError` if one does not exist."""
        if missing := [name for name in names if name not in self._variables]:
            raise ConfigError(f"--push: the notebook has no variable {', '.join(missing)}")
        return {name: self._variables[name] for name in names}

    @contextmanager
    def copying(self) -> Iterator[CopyProgress | None]:
        """Show a progress bar below the cell."""
        with bytes_bar(_console()) as progress:
            yield progress

    @contextmanager
    def loading(self, cache: str) -> Iterator[LoadProgress | None]:
        """Show a progress bar below the cell."""
        with rows_bar(_console(), cache) as progress:
            yield progress

    @contextmanager
    def querying(self) -> Iterator[QueryProgress]:
        """Show a progress line below the cell."""
        with rows_counter(_console()) as progress:
            yield progress

    def stream(self) -> NotebookStream:
        """Return a stream to the cell's output."""
        return NotebookStream()

    def run_view(self, *, with_chart: bool = True) -> RunView:
        """Return a widget; without widgets, a text view below a picture; in a terminal, a text view."""
        if this_kernel() is None:
            return TextRunView(NotebookStream())
        if shows_widgets(this_kernel()):
            return WidgetRunView(this_kernel(), with_chart=with_chart)
        # Do not rewrite lines: nobody watches, and the overwritten text would stay in the notebook.
        return TextRunView(NotebookStream(is_rewritable=False), CellArea(with_chart=with_chart))


def this_kernel() -> Any:
    """Return the kernel that runs this cell, or None in a terminal or a script."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None)


def _console() -> Any:
    """Return a rich console that shows progress bars in the cell, unless the kernel allows no input requests.

    Nobody watches such a kernel, and bars would leave empty outputs in the notebook.
    """
    from rich.console import Console

    kernel = this_kernel()
    if kernel is None or getattr(kernel, "_allow_stdin", False):
        return Console()
    return Console(force_jupyter=False, force_terminal=False)


class NotebookStream:
    """A stream to the cell's output, at a rate that Jupyter's server accepts."""

    rewriting_interval_s = 0.25

    def __init__(self, *, is_rewritable: bool = True) -> None:
        self.is_rewritable = is_rewritable
        self._allowed = float(_MAX_BURST_CHARS)
        self._at = time.monotonic()

    def write(self, text: str) -> None:
        """Write without IPython's copy of all that a cell prints, which would grow with a run's output.

        To make that copy, `InteractiveShell` replaces `write` on the stream object while a cell runs.
        """
        if text:
            type(sys.stdout).write(sys.stdout, text)
            sys.stdout.flush()
            self._wait(len(text))

    def _wait(self, num_chars: int) -> None:
        """Wait after writing `num_chars` if the rate is too high, so that the server drops no output."""
        now = time.monotonic()
        earned = (now - self._at) * _MAX_CHARS_PER_S
        self._allowed = min(self._allowed + earned, _MAX_BURST_CHARS) - num_chars
        self._at = now
        if self._allowed < 0:
            time.sleep(-self._allowed / _MAX_CHARS_PER_S)
