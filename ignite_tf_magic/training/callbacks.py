"""Callbacks of `fit` on several workers: who has which, and that all end together."""

from __future__ import annotations

from typing import Any

import numpy as np

from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.together import STOP, Together

# What they write is the same on every worker; one writes it.
_CHIEFS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "RemoteMonitor")


def for_worker(callbacks: Any, framework: Framework, group: WorkerGroup) -> list[Any]:
    """Give the callbacks of this worker: all of them to the chief, to the others those that write nothing."""
    if callbacks is None:
        return []
    listed = (
        callbacks if isinstance(callbacks, (list, tuple)) else getattr(callbacks, "callbacks", [callbacks])
    )
    module = framework.module.callbacks
    kinds = tuple(getattr(module, name) for name in _CHIEFS)
    return [each for each in listed if group.place.is_chief or not isinstance(each, kinds)]


def ending_together(framework: Framework, together: Together, group: WorkerGroup, model: Any) -> Any:
    """Make a callback that lets all workers stop in the same step when any of them wants to; it must be the last one.

    Within an epoch the wish travels with the next step; at its end it is asked for.
    """

    class EndingTogether(framework.module.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            agreed = together.agreed.numpy()
            if model.stop_training and not agreed[STOP]:
                together.wish(STOP)
                model.stop_training = False
            elif agreed[STOP]:
                model.stop_training = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            wish = float(model.stop_training) + float(together.wishes_for(STOP))
            if group.sum_arrays([np.float32(wish)])[0] > 0:
                model.stop_training = True

    return EndingTogether()
