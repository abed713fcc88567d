"""What any TensorBoard loads beside which this package is installed: `tensorboard --logdir igfs:///runs` reads igfs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tensorboard.plugins.base_plugin import TBLoader

from ignite_tf_magic.session.registration import register


class IgfsLoader(TBLoader):  # type: ignore[misc]
    """Has TensorFlow know igfs:// before TensorBoard reads; shows nothing of its own."""

    def fix_flags(self, flags: Any) -> None:
        """Look at what TensorBoard was asked for; called once, before it reads anything."""
        asked = f"{flags.logdir},{flags.logdir_spec}"
        if "igfs://" in asked:
            with suppress(
                ImportError
            ):  # without TensorFlow, TensorBoard reads through fsspec, which knows igfs
                register()

    def load(self, context: Any) -> None:
        """Give no plugin to show."""
