"""A run that is followed as text: a terminal, a log, a cell of a front end that shows nothing else."""

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
    """A place above the text that says where a run stands, and can show a picture of its training."""

    def busy(self, words: str) -> None:
        """Say what is done before there is a run."""

    def show(
        self, run: TrainingRun, progress: Progress, records: Sequence[TrainingRecord], *, is_last: bool
    ) -> None:
        """Show where the run stands."""


class TextRunView:
    """Writes what workers write. Where a run stands is in its area, or else behind the last line of a terminal.

    Args:
        stream: Takes the text.
        area: A place of its own for where the run stands.
    """

    tells_where = False

    def __init__(self, stream: OutputStream, area: RunArea | None = None) -> None:
        self.tells_failures_once = area is not None  # else who keeps the text keeps all of it
        self.is_rewritable = stream.is_rewritable
        self.is_left = False
        self._stream = stream
        self._area = area
        self._run: TrainingRun | None = None
        self._words = ""
        self._rewritten_at = 0.0

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Say so in the area; text has its own lines of what takes long."""
        if self._area is not None:
            self._area.busy(words)
        yield

    def keep_watching(self) -> None:
        """There is none."""

    def begin(self, run: TrainingRun) -> None:
        """The run is there."""
        self._run = run

    def write(self, output: LiveOutput) -> None:
        """Write all of it; what changes on the last line alone, now and then."""
        if self._area is None:
            output.note(self._words)
        now = time.monotonic()
        with_progress = now - self._rewritten_at >= self._stream.rewriting_interval_s
        self._stream.write(output.take(with_progress=with_progress))
        if with_progress:
            self._rewritten_at = now

    def show(self, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show where the run stands."""
        self._words = progress.words
        self._update(progress, records, is_last=False)

    def close(self, output: LiveOutput, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Write what is left."""
        self._stream.write(output.finish())
        self._update(progress, records, is_last=True)

    def _update(self, progress: Progress, records: Sequence[TrainingRecord], *, is_last: bool) -> None:
        if self._area is not None and self._run is not None:
            self._area.show(self._run, progress, records, is_last=is_last)
