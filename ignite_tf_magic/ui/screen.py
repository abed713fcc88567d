"""Defines the screens on which commands show their answers, in shells and notebooks, and their shared functions."""

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
    r"""A destination for the merged output of workers while a person follows a run.

    Attributes:
        is_rewritable: Whether "\r" returns to the beginning of the line, to rewrite it.
        rewriting_interval_s: The minimum time between two rewrites of a line.
    """

    is_rewritable: bool
    rewriting_interval_s: float

    def write(self, text: str) -> None:
        """Write at once; may block to limit the rate, so that no output is lost."""


class RunView(Protocol):
    """A view of a run while it starts and while a person follows it. Only one thread may use it.

    Attributes:
        is_rewritable: Whether an unfinished line can be rewritten.
        is_left: Whether the person has stopped watching.
        tells_where: Whether the view itself shows the run's id and hosts.
        tells_failures_once: Whether the output omits a traceback that the end of the run shows.
    """

    tells_where: bool
    tells_failures_once: bool
    is_rewritable: bool
    is_left: bool

    def busy(self, words: str) -> AbstractContextManager[None]:
        """Show `words`, and for how long they have applied, while there is no run yet."""

    def keep_watching(self) -> None:
        """Do not let the person stop watching before the run has ended."""

    def begin(self, run: TrainingRun) -> None:
        """Set the run that the view shows."""

    def write(self, output: LiveOutput) -> None:
        """Show the new output of workers. May block to limit the rate, or omit the middle of very much output."""

    def show(self, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show the progress of the run and the records of its training."""

    def close(self, output: LiveOutput, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show the remaining output and the final state, which stays visible."""


class Screen(Protocol):
    """A place that shows a command's answers.

    Attributes:
        command_name: How a person types our command there.
        outlives_commands: Whether this process continues after a command, as a notebook's kernel does. Such a process
            may own runs, and a mount must not block it.
        last_lines: The default number of log lines to show; None shows all.
    """

    command_name: str
    outlives_commands: bool
    last_lines: int | None

    def show(self, view: View) -> None:
        """Show a table or a message."""

    def say(self, line: str) -> None:
        """Print a line of the answer."""

    def note(self, line: str) -> None:
        """Print a line that accompanies the answer."""

    def write(self, data: memoryview) -> None:
        """Print the content of a file."""

    def show_end(self, view: View) -> None:
        """Show how a followed run has ended."""

    def show_picture(
        self, draw: Callable[[], bytes | None], series: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Show a picture if the screen can; otherwise do not draw it.

        Args:
            draw: Returns the picture as a PNG, or None if there is nothing to draw.
            series: Returns the data of an interactive chart, which replaces the picture where possible.
        """

    def show_board(self, board: TensorBoardInfo, height_px: int) -> None:
        """Show a TensorBoard or its URL."""

    def write_cell(self, words: Sequence[str], script: str) -> None:
        """Show a script, in a notebook as a new cell that begins with our command.

        Args:
            words: The command that starts the script, without our command's name.
            script: The script.
        """

    def show_panel(self) -> None:
        """Show the panel of runs, and keep it up to date."""

    def keep(self, value: Any, name: str | None, what: str | None) -> None:
        """Keep a value as a variable or file with this name; without a name, make it the command's answer.

        `what` describes the value to the person; None shows no description.

        Raises:
            ConfigError: The value cannot be kept under this name.
        """

    def show_rows(self, frame: Callable[[], Any], view: View) -> None:
        """Show rows: in a notebook as the DataFrame that `frame` returns, elsewhere as the table `view`."""

    def variables(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the person's variables with these names.

        Raises:
            ConfigError: A variable does not exist.
        """

    def copying(self) -> AbstractContextManager[CopyProgress | None]:
        """Show the progress of copying files."""

    def loading(self, cache: str) -> AbstractContextManager[LoadProgress | None]:
        """Show the progress of loading rows."""

    def querying(self) -> AbstractContextManager[QueryProgress]:
        """Show that a statement runs, and how many of its rows have been fetched."""

    def stream(self) -> OutputStream:
        """Open a stream for the output of workers."""

    def run_view(self, *, with_chart: bool = True) -> RunView:
        """Open a view in which to follow a run."""


def say_json(screen: Screen, value: Any) -> None:
    """Print an answer as JSON."""
    screen.say(json.dumps(value, indent=1))


def say_outcome(screen: Screen, outcome: Any, *, as_json: bool) -> None:
    """Print an outcome, a dataclass whose `str` is a sentence."""
    if as_json:
        say_json(screen, dataclasses.asdict(outcome))
    else:
        screen.say(str(outcome))


@contextmanager
def bytes_bar(console: Any) -> Iterator[CopyProgress]:
    """Show the progress of copying files if it takes more than two seconds; `console` is a rich console."""
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _shown_after_a_while(console, columns) as update:
        yield lambda name, done, total: update(
            description=escape(visible_line(name)), completed=done, total=total
        )


@contextmanager
def rows_bar(console: Any, cache: str) -> Iterator[LoadProgress]:
    """Show the progress of loading rows if it takes more than two seconds; `console` is a rich console."""
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "rows", TimeRemainingColumn())
    with _shown_after_a_while(console, columns, escape(visible_line(cache))) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def rows_counter(console: Any) -> Iterator[QueryProgress]:
    """Show the number of fetched rows if a statement takes more than two seconds; `console` is a rich console."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    began = "the cluster works on the statement; an interrupt ends it there, too"
    with _shown_after_a_while(console, (SpinnerColumn(), TimeElapsedColumn()), began) as update:
        yield lambda num_rows: update(description=f"{num_rows:,} rows fetched")


@contextmanager
def _shown_after_a_while(
    console: Any, columns: Sequence[Any], description: str = ""
) -> Iterator[Callable[..., None]]:
    """Show the progress of one task after two seconds, if the console can rewrite lines.

    A separate thread shows it, because the task may not report anything for a long time.

    Yields:
        A function that updates the task.
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
