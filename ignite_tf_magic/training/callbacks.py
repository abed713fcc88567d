"""Callbacks of `fit` in a run: who has which, and the last one, which leads the training through its steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.resume import Asked, Progress
from ignite_tf_magic.training.together import SAVE, STOP, Together

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


def leading(
    framework: Framework, together: Together, group: WorkerGroup, progress: Progress, asked: Asked
) -> Any:
    """Make the callback that must be the last one, behind the history.

    It lets all workers stop, and save, in the same step: within an epoch a wish of any of them travels with the next
    step, at its end it is asked for. And it puts a training that goes on back to where it was.
    """

    class Leading(framework.module.callbacks.Callback):  # type: ignore[misc, name-defined]
        epoch = step = 0
        last_batch = -1

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            self.epoch, self.last_batch = epoch, -1
            if epoch == progress.epoch and progress.was_found:
                self.step = progress.step - progress.num_batches_done
                progress.restore_callbacks()
                progress.restore_history(self.model.history)
                progress.restore_metrics()
                together.keep_metrics()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            self.step += batch - self.last_batch
            self.last_batch = batch
            if self.epoch == progress.epoch and batch < progress.num_batches_done:
                return  # it was done before
            agreed = together.agreed()
            self._agree_to_stop(bool(agreed[STOP]))
            if agreed[SAVE] or (group.place.size == 1 and self._wants_to_save()):
                together.wish(SAVE, wanted=False)
                progress.save(self.epoch, batch + 1, self.step)
                if asked.is_asked:
                    asked.end()
            elif self._wants_to_save():
                together.wish(SAVE)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            if asked.is_asked:
                asked.end()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del logs
            wishes = [self.model.stop_training or together.wishes_for(STOP), self._wants_to_save()]
            stop, save = group.sum_arrays([np.array(wishes, np.float32)])[0]
            if stop:
                self.model.stop_training = True
            if save:
                progress.save(epoch + 1, 0, self.step)
            if asked.is_asked:
                asked.end()

        def on_train_end(self, logs: Any = None) -> None:
            del logs
            progress.save(self.epoch + 1, 0, self.step, is_done=True)

        def _wants_to_save(self) -> bool:
            return asked.is_asked or (group.place.is_chief and progress.wants_to_save())

        def _agree_to_stop(self, is_agreed: bool) -> None:
            if is_agreed:
                self.model.stop_training = True
            elif self.model.stop_training and group.place.size > 1:
                together.wish(STOP)
                self.model.stop_training = False

    return Leading()
