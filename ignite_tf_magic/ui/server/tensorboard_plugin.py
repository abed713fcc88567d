"""A plugin that any TensorBoard in this environment loads, so that `tensorboard --logdir igfs:///runs` works."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tensorboard.plugins.base_plugin import TBLoader

from ignite_tf_magic.session.registration import register


class IgfsLoader(TBLoader):  # type: ignore[misc]
    """A loader that registers igfs:// with TensorFlow before TensorBoard reads logs. It adds no dashboard."""

    def fix_flags(self, flags: Any) -> None:
        """Register igfs:// if the flags mention it; TensorBoard calls this once, before it reads anything."""
        asked = f"{flags.logdir},{flags.logdir_spec}"
        if "igfs://" in asked:
            with suppress(
                ImportError
            ):  # without TensorFlow, TensorBoard reads through fsspec, which supports igfs
                register()

    def load(self, context: Any) -> None:
        """Offer no dashboard."""
