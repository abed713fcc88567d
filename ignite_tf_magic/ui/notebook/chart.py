"""The live chart of a training: loss and metrics over its steps, drawn again in place as records come."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.ui.metrics_views import place_text, speed_text
from ignite_tf_magic.ui.pictures import picture_of

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord

_INTERVAL_S = 2.0


def picture_bundle(png: bytes, text: str) -> dict[str, str]:
    """Return a picture as a MIME bundle, with words for a front end that shows none."""
    return {"image/png": base64.b64encode(png).decode(), "text/plain": text}


class LiveChart:
    """One picture in the cell's output. Shows nothing where matplotlib is not installed, or nothing is told."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn_at = float("-inf")
        self._num_drawn = 0

    def draw(self, records: Sequence[TrainingRecord], before: Callable[[], None]) -> None:
        """Draw what there is, unless it was drawn, or something was just a moment ago and more is to come.

        `before` is called before there is a picture for the first time: it stands below what was written by then.
        """
        if len(records) < 2 or len(records) == self._num_drawn:
            return
        now = time.monotonic()
        if now - self._drawn_at < _INTERVAL_S and not records[-1].is_epoch:
            return
        last = records[-1]
        title = "   ".join([place_text(last).partition(":")[0], speed_text(last)])
        picture = picture_of([("", [each for each in records if each.training == last.training])], title)
        if picture is None:
            return
        self._drawn_at, self._num_drawn = now, len(records)
        bundle = picture_bundle(picture, place_text(last))
        if self._handle is None:
            from IPython.display import DisplayHandle

            before()
            self._handle = DisplayHandle()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)
