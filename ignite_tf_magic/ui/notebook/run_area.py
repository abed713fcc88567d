"""Shows the progress of a run and a picture of its training above the run's text in a cell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.session import RunState
from ignite_tf_magic.ui.metrics_views import of_last_training
from ignite_tf_magic.ui.pictures import picture_of
from ignite_tf_magic.ui.progress import Progress
from ignite_tf_magic.ui.run_html import RunPicture

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord, TrainingRun

_INTERVAL_S = 2.0


def picture_of_training(records: Sequence[TrainingRecord]) -> bytes | None:
    """Draw the last training as a PNG; None without matplotlib or with too few records."""
    if len(records) < 2:
        return None
    return picture_of([("", of_last_training(records))])


class CellArea:
    """One output of the cell, which is updated in place."""

    def __init__(self, *, with_chart: bool) -> None:
        self._with_chart = with_chart
        self._handle: Any = None
        self._shown_at = float("-inf")
        self._png: bytes | None = None
        self._num_drawn = 0

    def busy(self, words: str) -> None:
        """Show what happens before there is a run."""
        self._display(RunPicture("", Progress(words, None, RunState.STARTING)))

    def show(
        self, run: TrainingRun, progress: Progress, records: Sequence[TrainingRecord], *, is_last: bool
    ) -> None:
        """Show the progress at most every two seconds, and at each end of an epoch."""
        now = time.monotonic()
        is_new = len(records) != self._num_drawn
        is_epoch = is_new and records[-1].is_epoch
        if now - self._shown_at < _INTERVAL_S and not is_epoch and not is_last:
            return
        if self._with_chart and is_new:
            self._png, self._num_drawn = picture_of_training(records), len(records)
        self._shown_at = now
        self._display(RunPicture(f"run {run.id}", progress, self._png))

    def _display(self, picture: RunPicture) -> None:
        from IPython.display import DisplayHandle

        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(picture.bundle(), raw=True)
        else:
            self._handle.update(picture.bundle(), raw=True)
