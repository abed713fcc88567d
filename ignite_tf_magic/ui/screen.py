"""Screens on which commands show their answers: a shell's terminal or a notebook's cell. What both do alike is here."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ignite_tf_magic.serialization.terminal_text import visible_line

if TYPE_CHECKING:
    from ignite_tf_magic.session import LoadProgress, QueryProgress, TrainingRecord, TrainingRun
    from ignite_tf_magic.session.files import CopyProgress
    from ignite_tf_magic.session.tensorboards import TensorBoardInfo
    from ignite_tf_magic.ui.live_output import LiveOutput
    from ignite_tf_magic.ui.progress import Progress
    from ignite_tf_magic.ui.render import View

_BAR_AFTER_S = 2.0


class OutputStream(Protocol):
    r"""Takes the joined output of workers while a run is followed.

    Attributes:
        is_rewritable: Whether "\r" brings the writer back to the beginning of the line.
        rewriting_interval_s: How long a line stands at least before it is rewritten.
    """

    is_rewritable: bool
    rewriting_interval_s: float

    def write(self, text: str) -> None:
        """Write at once; may block, so that a flood arrives whole."""


class RunView(Protocol):
    """Where a run is seen while it is followed, and before, while it is being started. One thread uses it.

    Attributes:
        is_rewritable: Whether an unfinished line can be rewritten.
        is_left: Whether the person wants to watch no longer.
        tells_where: Whether it tells by itself which run it is, and where that runs.
        tells_failures_once: Whether a traceback is left out of the output that the end of the run tells.
    """

    tells_where: bool
    tells_failures_once: bool
    is_rewritable: bool
    is_left: bool

    def busy(self, words: str) -> AbstractContextManager[None]:
        """Show what is done while there is no run yet, and for how long."""

    def keep_watching(self) -> None:
        """Offer no way to leave before the run has ended."""

    def begin(self, run: TrainingRun) -> None:
        """The run is there."""

    def write(self, output: LiveOutput) -> None:
        """Show what workers have written since; may block, so that a flood is not lost, or leave its middle out."""

    def show(self, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show where the run stands, and what its training has told."""

    def close(self, output: LiveOutput, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show all that is left; what is seen then stays."""


class Screen(Protocol):
    """Where a command's answers are shown.

    Attributes:
        command_name: How a person types our command there.
        outlives_commands: Whether this process goes on when a command has ended, as a notebook's kernel does. It may
            own runs then, and a mount must not keep it.
        last_lines: How many lines of a log are shown when nobody says how many; None: all.
    """

    command_name: str
    outlives_commands: bool
    last_lines: int | None

    def show(self, view: View) -> None:
        """Show a table or a message."""

    def say(self, line: str) -> None:
        """Print a line of the answer."""

    def note(self, line: str) -> None:
        """Print a line beside the answer."""

    def write(self, data: memoryview) -> None:
        """Print the content of a file."""

    def show_end(self, view: View) -> None:
        """Show how a run that was followed has ended."""

    def show_picture(
        self, draw: Callable[[], bytes | None], series: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Show a picture where pictures can be shown; elsewhere it is not drawn.

        Args:
            draw: Gives it as PNG; None when there is nothing to see.
            series: What an interactive chart in its place draws.
        """

    def show_board(self, board: TensorBoardInfo, height_px: int) -> None:
        """Show a TensorBoard, or say where it is."""

    def write_cell(self, words: Sequence[str], script: str) -> None:
        """Hand over a script: as a cell that begins with our command, where there are cells.

        Args:
            words: The command behind our name, which starts the script.
            script: The script.
        """

    def show_panel(self) -> None:
        """Show the runs, and go on showing them as they are."""

    def keep(self, value: Any, name: str | None, what: str | None) -> None:
        """Hand a value to the person: as a variable or a file of that name, else as the command's answer.

        `what` says what it is; None says nothing.

        Raises:
            ConfigError: It cannot be kept there.
        """

    def show_rows(self, frame: Callable[[], Any], view: View) -> None:
        """Show rows: a DataFrame where it can be gone on with, else the table, for which no DataFrame is made."""

    def variables(self, names: Sequence[str]) -> dict[str, Any]:
        """Return variables of the person's.

        Raises:
            ConfigError: There are none of these names.
        """

    def copying(self) -> AbstractContextManager[CopyProgress | None]:
        """Show how far copying files has come."""

    def loading(self, cache: str) -> AbstractContextManager[LoadProgress | None]:
        """Show how far loading rows has come."""

    def querying(self) -> AbstractContextManager[QueryProgress]:
        """Show that a statement goes on, and how many rows of it have come."""

    def stream(self) -> OutputStream:
        """Open the place for the output of workers."""

    def run_view(self, *, with_chart: bool = True) -> RunView:
        """Open the place where a run is followed."""


def say_json(screen: Screen, value: Any) -> None:
    """Print an answer for programs."""
    screen.say(json.dumps(value, indent=1))


def say_outcome(screen: Screen, outcome: Any, *, as_json: bool) -> None:
    """Print what came of something, a dataclass that is a sentence as text."""
    if as_json:
        say_json(screen, dataclasses.asdict(outcome))
    else:
        screen.say(str(outcome))


@contextmanager
def bytes_bar(console: Any) -> Iterator[CopyProgress]:
    """Show how far copying files has come, when it takes more than two seconds; `console` is one of rich."""
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _shown_after_a_while(console, columns) as update:
        yield lambda name, done, total: update(
            description=escape(visible_line(name)), completed=done, total=total
        )


@contextmanager
def rows_bar(console: Any, cache: str) -> Iterator[LoadProgress]:
    """Show how many rows of a cache are loaded, when it takes more than two seconds; `console` is one of rich."""
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "rows", TimeRemainingColumn())
    with _shown_after_a_while(console, columns, escape(visible_line(cache))) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def rows_counter(console: Any) -> Iterator[QueryProgress]:
    """Show that a statement takes more than two seconds, and how many rows of it are here; `console` is one of rich."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    began = "the cluster works on the statement; an interrupt ends it there, too"
    with _shown_after_a_while(console, (SpinnerColumn(), TimeElapsedColumn()), began) as update:
        yield lambda num_rows: update(description=f"{num_rows:,} rows fetched")


@contextmanager
def _shown_after_a_while(
    console: Any, columns: Sequence[Any], description: str = ""
) -> Iterator[Callable[..., None]]:
    """Show one task's progress from the third second on, where it can be rewritten; yields what updates the task.

    By a thread of its own: what is waited for may not tell anything for long.
    """
    from rich.progress import Progress

    if not (console.is_terminal or console.is_jupyter):
        yield lambda **_: None
        return
    bar = Progress("{task.description}", *columns, console=console, transient=True)
    task = bar.add_task(description, total=None)
    timer = threading.Timer(_BAR_AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield partial(bar.update, task)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
