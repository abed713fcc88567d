"""Captures a command's answer as text, for a panel in which the person clicks instead of typing commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization.terminal_text import plain
from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import make_parser, read_command
from ignite_tf_magic.ui.drafts import magic_cell
from ignite_tf_magic.ui.text_run_view import TextRunView

if TYPE_CHECKING:
    from ignite_tf_magic.session.tensorboards import TensorBoardInfo
    from ignite_tf_magic.ui.render import View


class CapturedScreen:
    """A screen that collects what a command shows.

    Attributes:
        parts: The pieces of the answer.
        notes: The lines that accompany the answer.
        url: The URL of a TensorBoard, if that was the answer.
        cell: The text of a notebook cell, if that was the answer.
    """

    outlives_commands = True
    last_lines: int | None = 200
    is_rewritable = False
    rewriting_interval_s = 0.0

    def __init__(self, command_name: str) -> None:
        self.command_name = command_name
        self.parts: list[str] = []
        self.notes: list[str] = []
        self.url = ""
        self.cell = ""

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.parts).rstrip()

    def show(self, view: View) -> None:
        """Collect a table or a message."""
        self.parts.append(f"{view.text}\n\n")

    show_end = show

    def say(self, line: str) -> None:
        """Collect a line of the answer."""
        self.parts.append(f"{line}\n")

    def note(self, line: str) -> None:
        """Collect a line that accompanies the answer."""
        self.notes.append(line)

    def write(self, data: memoryview | str) -> None:
        """Collect the content of a file, or the output of workers."""
        text = data if isinstance(data, str) else bytes(data).decode(errors="replace")
        self.parts.append("\n".join(map(plain, text.split("\n"))))

    def show_picture(
        self, draw: Callable[[], bytes | None], series: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Ignore the picture."""

    def show_board(self, board: TensorBoardInfo, height_px: int) -> None:
        """Keep the URL of the TensorBoard."""
        del height_px
        self.url = board.url

    def write_cell(self, words: Sequence[str], script: str) -> None:
        """Keep the script as a notebook cell."""
        self.cell = magic_cell(words, script)

    def show_panel(self) -> None:
        """Do nothing: the panel is open already."""

    def keep(self, value: Any, name: str | None, what: str | None) -> None:
        """Collect a value as text.

        Raises:
            ConfigError: A name was given; a panel cannot keep values.
        """
        del what
        if name is not None:
            raise ConfigError("the panel cannot store results (-o); use a cell or a shell")
        self.parts.append(f"{value}\n")

    def show_rows(self, frame: Callable[[], Any], view: View) -> None:
        """Collect the table."""
        del frame
        self.show(view)

    def variables(self, names: Sequence[str]) -> dict[str, Any]:
        """Return no variables; raise `ConfigError` if any are requested."""
        if names:
            raise ConfigError("the panel cannot pass notebook variables; use a cell")
        return {}

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Show no progress."""
        yield

    @contextmanager
    def loading(self, cache: str) -> Iterator[None]:
        """Show no progress."""
        del cache
        yield

    @contextmanager
    def querying(self) -> Iterator[Callable[[int], None]]:
        """Show no progress."""
        yield lambda _: None

    def stream(self) -> CapturedScreen:
        """Return this screen, which collects the output of workers."""
        return self

    def run_view(self, *, with_chart: bool = True) -> TextRunView:
        """Return a view that collects the run as text."""
        del with_chart
        return TextRunView(self)


def answer_of(words: Sequence[str], command_name: str) -> CapturedScreen:
    """Run a command, and return what it shows.

    Args:
        words: The command and its arguments. The caller ensures that untrusted words are not read as options.
        command_name: How a reader of the answer types our command, such as "ignite-tf".

    Raises:
        IgniteTfError: The command failed.
    """
    screen = CapturedScreen(command_name)
    options = read_command(make_parser(_RaisingParser, command_name, words), words)
    if options is not None:
        options.command.act(options, screen)
    return screen


class _RaisingParser(CommandParser):
    """A command parser that raises an error instead of ending the process."""

    def error(self, message: str) -> Any:
        """Raise a `ConfigError`."""
        raise ConfigError(message)
