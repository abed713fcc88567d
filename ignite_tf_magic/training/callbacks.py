"""Decides which worker runs which callbacks of `fit`, and adds the callback that leads the training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np

from ignite_tf_magic.training.consistency import Firsts
from ignite_tf_magic.training.frameworks import Framework, is_of_keras
from ignite_tf_magic.training.group import WorkerGroup, as_array
from ignite_tf_magic.training.hooking import seams
from ignite_tf_magic.training.one_rule import print_line
from ignite_tf_magic.training.reporting import Reporter, check_loss
from ignite_tf_magic.training.resume import FitProgress, GracefulShutdown
from ignite_tf_magic.training.roll_call import OPERATIONS
from ignite_tf_magic.training.step import REPORT, SAVE, STOP
from ignite_tf_magic.training.together import DataParallelFit

# They would write the same on every worker, so only the chief runs them.
_CHIEFS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "RemoteMonitor")


def for_worker(callbacks: Any, framework: Framework, group: WorkerGroup) -> list[Any]:
    """Return the callbacks of this worker: all on the chief, on the others those that write nothing."""
    kinds = _kinds_of_chief(framework)
    return [each for each in listed(callbacks) if group.place.is_chief or not isinstance(each, kinds)]


def _kinds_of_chief(framework: Framework) -> tuple[type, ...]:
    return tuple(getattr(framework.module.callbacks, name) for name in _CHIEFS)


@contextmanager
def only_of_chief(
    callbacks: Sequence[Any],
    framework: Framework,
    group: WorkerGroup,
    alone: Callable[[], AbstractContextManager[None]],
) -> Iterator[None]:
    """Let the script's callbacks that only the chief has run alone, for example when they call `evaluate`.

    Args:
        callbacks: The callbacks of this worker.
        framework: The model's framework.
        group: The workers.
        alone: Makes the context in which a method of such a callback is called.
    """

    def by_itself(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            with alone():
                return method(*arguments, **options)

        return call

    kinds = _kinds_of_chief(framework)
    with ExitStack() as stack:
        for each in callbacks if group.place.size > 1 else ():
            if isinstance(each, kinds) and not is_of_keras(type(each)):
                names = [
                    name
                    for name in dir(each)
                    if name.startswith("on_") and not is_of_keras(getattr(each, name))
                ]
                stack.enter_context(seams(each, {name: by_itself(getattr(each, name)) for name in names}))
        yield


def listed(callbacks: Any) -> list[Any]:
    """Return the `callbacks` argument of `fit` as a list. It may be None, one, several or a `CallbackList`."""
    if callbacks is None:
        return []
    return list(
        callbacks if isinstance(callbacks, (list, tuple)) else getattr(callbacks, "callbacks", [callbacks])
    )


def numbered_steps(framework: Framework, group: WorkerGroup) -> list[Any]:
    """Make the callback that numbers the steps of all workers; none for one worker."""
    if group.place.size == 1:
        return []
    kind = type("NumberedSteps", (_NumberedSteps, framework.module.callbacks.Callback), {})
    return [kind()]


class _NumberedSteps:
    """A callback that numbers steps, so that workers notice if they are at different ones."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Count the beginning of a training step."""
        del batch, logs
        OPERATIONS.begin("a training step")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Count the beginning of an evaluation step."""
        del batch, logs
        OPERATIONS.begin("an evaluation step")


def leading(
    framework: Framework,
    together: DataParallelFit,
    group: WorkerGroup,
    progress: FitProgress,
    reporter: Reporter,
    asked: GracefulShutdown,
    firsts: Firsts,
    planned_rows: int | None,
) -> Any:
    """Make the callback that must be the last one, after the history.

    `planned_rows` is the number of rows that all workers are to train in an epoch, if known.
    """
    kind = type("Leading", (Leading, framework.module.callbacks.Callback), {})
    return kind(together, group, progress, reporter, asked, firsts, planned_rows)


def same_logs(
    callbacks: Sequence[Any], framework: Framework, together: DataParallelFit, group: WorkerGroup
) -> list[Any]:
    """Make the callback that must be the first one if any worker's callbacks act on batch logs; else none.

    A batch's logs cover this worker's rows only, so callbacks that act on them could do different things on each
    worker. Logs of all rows cost one operation of all workers per batch. They are made only for the script's own
    callbacks.
    """
    if group.place.size == 1 or not group.any_true(any(acts_by_batch(each, framework) for each in callbacks)):
        return []
    kind = type("SameLogs", (_SameLogs, framework.module.callbacks.Callback), {})
    return [kind(together)]


def acts_by_batch(callback: Any, framework: Framework) -> bool:
    """Return whether a callback is the script's own and acts after each batch."""
    own = framework.module.__name__
    return any(
        name in vars(callback)
        or getattr(getattr(callback, name, None), "__module__", own).partition(".")[0] != own
        for name in ("on_train_batch_end", "on_batch_end")
    )


class _SameLogs:
    """A callback that puts the metrics over all workers' rows into a batch's logs, for later callbacks."""

    def __init__(self, together: DataParallelFit) -> None:
        super().__init__()
        self._together = together

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Change the logs in place; all callbacks get the same object."""
        del batch
        results = self._together.results()
        if logs:
            logs.update({name: as_number(value) for name, value in results.items() if name in logs})


def as_number(value: Any) -> Any:
    """Return a result in Keras' form: a float, or an array of several values."""
    array = as_array(value)
    return float(array) if array.ndim == 0 else array


class LeadingCallback:
    """The base of the last callback of a training, whether this process or workers make its steps.

    Concrete classes have the `Callback` of either framework as their second base.
    """

    model: Any
    params: dict[str, Any]

    def __init__(self, progress: FitProgress, reporter: Reporter, asked: GracefulShutdown) -> None:
        super().__init__()
        self._progress = progress
        self._reporter = reporter
        self._asked = asked
        self.epoch = self.step = 0
        self.last_batch = -1

    def on_test_begin(self, logs: Any = None) -> None:
        """Pause the measurement of the training during validation."""
        del logs
        self._reporter.pause()

    def on_test_end(self, logs: Any = None) -> None:
        """Resume the measurement of the training."""
        del logs
        self._reporter.go()

    def on_train_end(self, logs: Any = None) -> None:
        """Save that the training is finished."""
        del logs
        self._progress.save(self.epoch + 1, 0, self.step, is_done=True)

    def _goes_on_in(self, epoch: int) -> bool:
        """Begin an epoch. If the training resumes in it, restore its state and return True."""
        self.epoch, self.last_batch = epoch, -1
        if epoch != self._progress.epoch or not self._progress.was_found:
            return False
        self.step = self._progress.step - self._progress.num_batches_done
        self._progress.restore_callbacks()
        self._progress.restore_history(self.model.history)
        self._progress.restore_metrics()
        return True

    def _was_done_before(self, batch: int) -> bool:
        """Count the steps up to this batch, and return whether it was done before the restart."""
        self.step += batch - self.last_batch
        self.last_batch = batch
        return self.epoch == self._progress.epoch and batch < self._progress.num_batches_done


class Leading(LeadingCallback):
    """The callback that leads a training on all workers.

    It makes them stop, save and report in the same step. Within an epoch, a worker's request travels with the next
    step; at the end of an epoch, the workers exchange their requests. It also restores the state of a resumed training.
    """

    def __init__(
        self,
        together: DataParallelFit,
        group: WorkerGroup,
        progress: FitProgress,
        reporter: Reporter,
        asked: GracefulShutdown,
        firsts: Firsts,
        planned_rows: int | None,
    ) -> None:
        super().__init__(progress, reporter, asked)
        self._together = together
        self._group = group
        self._firsts = firsts
        self._planned_rows = planned_rows
        self._is_whole_epoch = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restore the training's state if it resumes in this epoch."""
        del logs
        self._is_whole_epoch = not self._goes_on_in(epoch)
        if not self._is_whole_epoch:
            self._together.keep_metrics()
        self._together.take_rows_done()
        self._reporter.go()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop, save and report together with the other workers."""
        if steps := self.params.get("steps"):
            batch = min(batch, steps - 1)  # with several steps per call, the last may not exist
        if self.last_batch < 0:
            for first in self._firsts.of_training:
                first.check(self._group)
        if self._was_done_before(batch):
            return
        agreed = self._together.agreed()
        self._agree_to_stop(bool(agreed[STOP]))
        if agreed[SAVE] or (self._group.place.size == 1 and self._wants_to_save()):
            self._together.wish(SAVE, wanted=False)
            self._together.check_weights(f"after step {self.step}")
            self._progress.save(self.epoch, batch + 1, self.step, logs=logs)
            self._asked.end_together(self._group)
        elif self._wants_to_save():
            self._together.wish(SAVE)
        self._report_if_agreed(bool(agreed[REPORT]), logs or {})

    def on_test_end(self, logs: Any = None) -> None:
        """Check that all workers validated the same data, and resume the measurement of the training."""
        for first in self._firsts.of_validation:
            first.check(self._group)
        super().on_test_end(logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """End the process if it was asked to. Validation adds nothing to save."""
        del batch, logs
        if self._asked.is_asked:
            self._asked.end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the epoch, and stop or save if any worker requests it."""
        self._reporter.report(epoch, self.last_batch + 1, self.step, logs or {}, is_epoch=True)
        check_loss(logs or {}, epoch, self.step)
        self._together.check_weights(f"after epoch {epoch + 1}")
        wishes = [self.model.stop_training or self._together.wishes_for(STOP), self._wants_to_save()]
        stop, save = self._group.sum_arrays([np.array(wishes, np.float32)])[0]
        self._tell_of_missing_rows(epoch)
        if stop:
            self.model.stop_training = True
        if save:
            self._progress.save(epoch + 1, 0, self.step)
            self._asked.end_together(self._group)

    def _tell_of_missing_rows(self, epoch: int) -> None:
        """Print, on the chief, how many rows the epoch lacked compared with the count at the run's start."""
        rows = self._together.take_rows_done()
        is_whole = self._is_whole_epoch and not self.model.stop_training
        if self._planned_rows and is_whole and self._group.place.is_chief and rows < self._planned_rows:
            print_line(
                f"epoch {epoch + 1} trained {rows:,} rows: {self._planned_rows - rows:,} of the {self._planned_rows:,} "
                "that were in the cache when the run began are gone"
            )

    def _report_if_agreed(self, is_agreed: bool, logs: Mapping[str, Any]) -> None:
        if is_agreed or (self._group.place.size == 1 and self._reporter.is_time()):
            self._together.wish(REPORT, wanted=False)
            values = {**logs, **self._together.results()}
            self._reporter.report(self.epoch, self.last_batch + 1, self.step, values, is_epoch=False)
            check_loss(values, self.epoch, self.step)
        elif self._group.place.is_chief and self._reporter.is_time():
            self._together.wish(REPORT)

    def _wants_to_save(self) -> bool:
        return self._asked.is_asked or (self._group.place.is_chief and self._progress.wants_to_save())

    def _agree_to_stop(self, is_agreed: bool) -> None:
        if is_agreed:
            self.model.stop_training = True
        elif self.model.stop_training and self._group.place.size > 1:
            self._together.wish(STOP)
            self.model.stop_training = False
