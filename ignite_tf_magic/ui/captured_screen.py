"""A screen that nobody sees: a command's answer as text, for a view that has clicks in place of words."""

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
    """Collects what a command shows.

    Attributes:
        parts: The answer, piece by piece.
        notes: What was said beside it.
        url: Where a TensorBoard is, if that was the answer.
        cell: The cell that was written, if that was the answer.
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
        """Take a table or a message."""
        self.parts.append(f"{view.text}\n\n")

    show_end = show

    def say(self, line: str) -> None:
        """Take a line of the answer."""
        self.parts.append(f"{line}\n")

    def note(self, line: str) -> None:
        """Take a line beside it."""
        self.notes.append(line)

    def write(self, data: memoryview | str) -> None:
        """Take the content of a file, or output of workers."""
        text = data if isinstance(data, str) else bytes(data).decode(errors="replace")
        self.parts.append("\n".join(map(plain, text.split("\n"))))

    def show_picture(
        self, draw: Callable[[], bytes | None], series: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Draw none."""

    def show_board(self, board: TensorBoardInfo, height_px: int) -> None:
        """Note where it is."""
        del height_px
        self.url = board.url

    def write_cell(self, words: Sequence[str], script: str) -> None:
        """Take it as a cell."""
        self.cell = magic_cell(words, script)

    def show_panel(self) -> None:
        """There is one already."""

    def keep(self, value: Any, name: str | None, what: str | None) -> None:
        """Take a value as text; it has no name here."""
        del what
        if name is not None:
            raise ConfigError("nothing can be kept from here; use a cell or a shell")
        self.parts.append(f"{value}\n")

    def show_rows(self, frame: Callable[[], Any], view: View) -> None:
        """Take the table."""
        del frame
        self.show(view)

    def variables(self, names: Sequence[str]) -> dict[str, Any]:
        """There are none."""
        if names:
            raise ConfigError("variables are a notebook's; use a cell")
        return {}

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Show nothing."""
        yield

    @contextmanager
    def loading(self, cache: str) -> Iterator[None]:
        """Show nothing."""
        del cache
        yield

    @contextmanager
    def querying(self) -> Iterator[Callable[[int], None]]:
        """Show nothing."""
        yield lambda _: None

    def stream(self) -> CapturedScreen:
        """Take the output of workers."""
        return self

    def run_view(self, *, with_chart: bool = True) -> TextRunView:
        """Take it as text."""
        del with_chart
        return TextRunView(self)


def answer_of(words: Sequence[str], command_name: str) -> CapturedScreen:
    """Carry a command out, and return what it shows.

    Args:
        words: The command and its arguments, none of which is an option of others' making.
        command_name: How our command is typed where the answer is read.

    Raises:
        IgniteTfError: It cannot be carried out.
    """
    screen = CapturedScreen(command_name)
    options = read_command(make_parser(_RaisingParser, command_name, words), words)
    if options is not None:
        options.command.act(options, screen)
    return screen


class _RaisingParser(CommandParser):
    """Does not end the process."""

    def error(self, message: str) -> Any:
        """Say what is wrong."""
        raise ConfigError(message)
