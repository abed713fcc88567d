"""The screen of a shell: only answers go to standard output, everything else to standard error."""

from __future__ import annotations

import codecs
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization.terminal_text import coloured, echo
from ignite_tf_magic.session import list_runs
from ignite_tf_magic.ui.render import runs_view
from ignite_tf_magic.ui.screen import bytes_bar, rows_bar, rows_counter
from ignite_tf_magic.ui.shell.top import make_app
from ignite_tf_magic.ui.text_run_view import TextRunView

if TYPE_CHECKING:
    from ignite_tf_magic.session import LoadProgress, QueryProgress
    from ignite_tf_magic.session.files import CopyProgress
    from ignite_tf_magic.session.tensorboards import TensorBoardInfo
    from ignite_tf_magic.ui.render import View


class ShellScreen:
    """A screen that prints to a terminal, a file or a pipe."""

    outlives_commands = False
    last_lines: int | None = None

    def __init__(self, command_name: str) -> None:
        self.command_name = command_name
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(self, view: View) -> None:
        """Print a table or a message."""
        echo(view.text)

    def say(self, line: str) -> None:
        """Print a line of the answer."""
        echo(line, flush=True)

    def note(self, line: str) -> None:
        """Print a line to standard error."""
        echo(line, file=sys.stderr, flush=True)

    def write(self, data: memoryview) -> None:
        """Print the content of a file: unchanged, or on a terminal without harmful control codes."""
        if not sys.stdout.isatty():
            sys.stdout.buffer.write(data)
            return
        sys.stdout.write(coloured(self._decoder.decode(data)))

    def show_end(self, view: View) -> None:
        """Print how a run ended to standard error."""
        self.note(view.text)

    def show_picture(
        self, draw: Callable[[], bytes | None], series: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Do nothing: a shell cannot show pictures."""

    def show_board(self, board: TensorBoardInfo, height_px: int) -> None:
        """Print the URL of the TensorBoard."""
        del height_px
        for note in board.notes:
            self.note(note)
        self.say(board.url)

    def write_cell(self, words: Sequence[str], script: str) -> None:
        """Print the script, and to standard error the command that starts it."""
        self.say(script.rstrip("\n"))
        self.note(
            f"save it as train.py, then run: {shlex.join([self.command_name, *words, '--script', 'train.py'])}"
        )

    def show_panel(self) -> None:
        """Show the panel on the whole terminal until the person quits; without a terminal, print the runs once."""
        if sys.stdout.isatty() and sys.stdin.isatty():
            make_app(self.command_name).run()
            return
        listed = list_runs()
        echo(runs_view(listed.runs, datetime.now(timezone.utc)).text, flush=True)
        for warning in listed.warnings:
            self.note(warning)

    def keep(self, value: Any, name: str | None, what: str | None) -> None:
        """Write a value to a file: a model as Keras does, rows as CSV or Parquet, a run as its id."""
        if name is None:
            self.say(what or str(value))
            return
        try:
            if hasattr(value, "to_csv"):
                frame = value.apply(_with_whole_arrays)
                (frame.to_parquet if name.endswith(".parquet") else frame.to_csv)(name, index=False)
            elif hasattr(value, "save"):
                value.save(name)
            else:
                Path(name).write_text(f"{value.id}\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"-o {name} cannot be written: {error}") from error
        if what:
            self.note(f"{name}: {what}")

    def show_rows(self, frame: Callable[[], Any], view: View) -> None:
        """Print the table."""
        del frame
        echo(view.text)

    def variables(self, names: Sequence[str]) -> dict[str, Any]:
        """Return no variables; raise `ConfigError` if any are requested."""
        if names:
            raise ConfigError("--push takes variables of a notebook; a shell has none")
        return {}

    @contextmanager
    def copying(self) -> Iterator[CopyProgress | None]:
        """Show a progress bar on a terminal."""
        from rich.console import Console

        with bytes_bar(Console(stderr=True)) as progress:
            yield progress

    @contextmanager
    def loading(self, cache: str) -> Iterator[LoadProgress | None]:
        """Show a progress bar on a terminal."""
        from rich.console import Console

        with rows_bar(Console(stderr=True), cache) as progress:
            yield progress

    @contextmanager
    def querying(self) -> Iterator[QueryProgress]:
        """Show a progress line on a terminal."""
        from rich.console import Console

        with rows_counter(Console(stderr=True)) as progress:
            yield progress

    def stream(self) -> ShellStream:
        """Return a stream to standard output."""
        return ShellStream()

    def run_view(self, *, with_chart: bool = True) -> TextRunView:
        """Return a view on standard output; a terminal shows the progress after its last line."""
        del with_chart
        return TextRunView(self.stream())


def _with_whole_arrays(column: Any) -> Any:
    """Convert arrays to lists, because text files would contain shortened arrays."""
    if column.dtype != object:
        return column
    return column.map(lambda cell: cell.tolist() if hasattr(cell, "tolist") else cell)


class ShellStream:
    """A stream to standard output, for text that is already safe for a terminal."""

    rewriting_interval_s = 0.0

    def __init__(self) -> None:
        self.is_rewritable = sys.stdout.isatty()

    def write(self, text: str) -> None:
        """Write at once."""
        sys.stdout.write(text)
        sys.stdout.flush()
