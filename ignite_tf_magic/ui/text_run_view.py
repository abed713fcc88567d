"""Shows a followed run as text: in a terminal, a log, or a cell of a front end without widgets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord, TrainingRun
    from ignite_tf_magic.ui.live_output import LiveOutput
    from ignite_tf_magic.ui.progress import Progress
    from ignite_tf_magic.ui.screen import OutputStream


class RunArea(Protocol):
    """A place above the text for the progress of a run and a picture of its training."""

    def busy(self, words: str) -> None:
        """Show what happens before there is a run."""

    def show(
        self, run: TrainingRun, progress: Progress, records: Sequence[TrainingRecord], *, is_last: bool
    ) -> None:
        """Show the progress of the run."""


class TextRunView:
    """A view that writes the output of workers as text, and shows the progress in an area or after the last line.

    Args:
        stream: The destination of the text.
        area: A separate place for the progress; None shows it after the last line of a terminal.
    """

    tells_where = False

    def __init__(self, stream: OutputStream, area: RunArea | None = None) -> None:
        # Without an area, the text may be saved as the only log, so it keeps all tracebacks.
        self.tells_failures_once = area is not None
        self.is_rewritable = stream.is_rewritable
        self.is_left = False
        self._stream = stream
        self._area = area
        self._run: TrainingRun | None = None
        self._words = ""
        self._rewritten_at = 0.0

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Show `words` in the area, if there is one. Slow steps report lines of text themselves."""
        if self._area is not None:
            self._area.busy(words)
        yield

    def keep_watching(self) -> None:
        """Do nothing: a text view has no button to stop watching."""

    def begin(self, run: TrainingRun) -> None:
        """Set the run that the view shows."""
        self._run = run

    def write(self, output: LiveOutput) -> None:
        """Write all complete lines at once, and changes of the last line from time to time."""
        if self._area is None:
            output.note(self._words)
        now = time.monotonic()
        with_progress = now - self._rewritten_at >= self._stream.rewriting_interval_s
        self._stream.write(output.take(with_progress=with_progress))
        if with_progress:
            self._rewritten_at = now

    def show(self, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show the progress of the run."""
        self._words = progress.words
        self._update(progress, records, is_last=False)

    def close(self, output: LiveOutput, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Write the remaining output."""
        self._stream.write(output.finish())
        self._update(progress, records, is_last=True)

    def _update(self, progress: Progress, records: Sequence[TrainingRecord], *, is_last: bool) -> None:
        if self._area is not None and self._run is not None:
            self._area.show(self._run, progress, records, is_last=is_last)
