"""Replaces Keras' train function in a `fit` of the chief whose steps the workers make.

Keras' loop over epochs and batches, its callbacks and its validation run in the chief as usual. Instead of making a
step, the loop gets the report of a step that a worker has made. At the end of an epoch, and before a checkpoint, no
step is running, and the model in this process has the weights of the parameter servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.chief_client import Servers
from ignite_tf_magic.training.frameworks import Framework, look_at_step
from ignite_tf_magic.training.hooking import seams
from ignite_tf_magic.training.remote_step import RemoteStep, StepReport
from ignite_tf_magic.training.resume import FitProgress
from ignite_tf_magic.training.step_queue import StepQueue
from ignite_tf_magic.training.step_sources import HandedBatches, StepSource
from ignite_tf_magic.training.waiting import count_rows

# The steps for each worker that may begin before Keras gets the first report: the next one is ready when one ends.
_AHEAD = 2


class HandedOutFit:
    """Makes the steps of one `fit` on workers. Used in one thread.

    Args:
        model: The trained model.
        framework: The model's framework.
        servers: The workers and parameter servers.
        source: The source of batches.
        progress: The progress from which the training resumes.
        follows: Whether callbacks read weights within an epoch. Then weights are fetched after each step.
    """

    def __init__(
        self,
        model: Any,
        framework: Framework,
        servers: Servers,
        source: StepSource,
        progress: FitProgress,
        *,
        follows: bool,
    ) -> None:
        self._model = model
        self._framework = framework
        self._servers = servers
        self._source = source
        self._progress = progress
        self._follows = follows
        self._steps: _Steps | None = None
        self._budget: int | None = None
        self._is_built = self._is_expected = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the model's train function in a block, and restore it afterwards."""
        model, framework = self._model, self._framework
        before, num_steps = model.train_function, framework.steps_per_execution(model)
        framework.set_steps_per_execution(model, 1)
        try:
            with seams(model, {"make_train_function": self._make_train_function}):
                yield
        finally:
            model.train_function = before
            framework.set_steps_per_execution(model, num_steps)
            if self._steps is not None:
                self._steps.queue.close()

    def build(self, element_spec: Any) -> None:
        """Create all variables of the model and its optimizers, and restore their saved values."""
        look_at_step(self._model, self._framework, self._model.train_step, element_spec)
        self._progress.restore()
        self._is_built = True

    def expect_epoch(self, budget: int | None) -> None:
        """Make the next call of the train function begin an epoch of `budget` steps; None if unknown."""
        self._is_expected, self._budget = True, budget

    def stop(self) -> None:
        """End the epoch early, after the running steps, which count."""
        if self._steps is not None:
            self._steps.stop()

    def settle(self) -> int:
        """Wait for the running steps, fetch the weights, and return the number of steps not reported to Keras."""
        return 0 if self._steps is None else self._steps.settle()

    def go_on(self) -> None:
        """Let steps begin again after `settle`."""
        if self._steps is not None:
            self._steps.go_on()

    def _make_train_function(self, force: bool = False) -> Any:
        del force
        self._model.train_function = self._train_function
        return self._train_function

    def _train_function(self, iterator: Any) -> Any:
        """Return the logs of a step, as Keras' train function does."""
        if self._steps is None:
            self._steps = self._start(iterator.element_spec)
        if self._is_expected:
            self._is_expected = False
            self._steps.begin_epoch(self._budget)
        logs = self._steps.next_logs(iterator)
        if logs is None:
            raise StopIteration  # as at the end of a dataset
        return logs

    def _start(self, spec: Any) -> _Steps:
        spec = self._source.element_spec or spec
        if not self._is_built:
            self.build(spec)
        step = RemoteStep(self._model, self._framework, spec, self._servers.ps)
        queue = StepQueue(self._servers, self._source, step, _AHEAD * len(self._servers.workers))
        count = partial(self._framework.count_step, self._model)
        return _Steps(self._model, step, queue, self._source, count, follows=self._follows)


class _Steps:
    """The steps of a `fit`, and the sums of their results."""

    def __init__(
        self,
        model: Any,
        step: RemoteStep,
        queue: StepQueue,
        source: StepSource,
        count: Callable[[], None],
        *,
        follows: bool,
    ) -> None:
        self.queue = queue
        self._model = model
        self._step = step
        self._source = source
        self._count = count
        self._follows = follows
        self._show = tf.function(self._shown, autograph=False)
        self._totals: list[np.ndarray] = []
        self._added: deque[StepReport] = deque()  # counted, but not reported to Keras yet
        self._is_under_way = False

    def begin_epoch(self, budget: int | None) -> None:
        self._is_under_way = True
        self._totals = [
            each.numpy().astype(np.float64) - initial
            for each, initial in zip(self._step.metrics, self._step.initial, strict=True)
        ]
        self._step.variables.push()
        self.queue.begin_epoch(budget)

    def stop(self) -> None:
        if self._is_under_way:
            self._add_all(self.queue.pause())
            self._added.clear()
            self._end_epoch()

    def settle(self) -> int:
        if self._is_under_way:
            self._add_all(self.queue.pause())
            self._step.variables.pull(is_settled=True)
            self._results()
        return len(self._added)

    def go_on(self) -> None:
        if self._is_under_way:
            self.queue.go_on()

    def next_logs(self, iterator: Any) -> Mapping[str, Any] | None:
        """Wait for a step and return its logs, or None after the last step of an epoch."""
        if not self._is_under_way:
            return None
        report = self._next_report(iterator)
        if not self._added and self.queue.is_over():
            self._end_epoch()
        elif self._follows:
            self._step.variables.pull(is_settled=False)
        if report is None:
            return None
        logs = self._results()
        if not report.others:
            return logs
        return {name: logs.get(name, value) for name, value in report.others.items()}

    def _next_report(self, iterator: Any) -> StepReport | None:
        if self._added:
            return self._added.popleft()
        self._step.variables.push_settings()
        if isinstance(self._source, HandedBatches):
            self._feed(iterator, self._source)
        report = self.queue.next()
        if report is not None:
            self._add_all([report])
            self._added.clear()
        return report

    def _feed(self, iterator: Any, source: HandedBatches) -> None:
        """Add batches from the chief's data to the source until enough are waiting."""
        while self.queue.wants_more():
            try:
                batch = tf.nest.flatten(next(iterator), expand_composites=True)
            except (StopIteration, tf.errors.OutOfRangeError):
                self.queue.change_source(source.end)
                return
            self.queue.change_source(partial(source.add, [part for part in batch if part is not None]))

    def _end_epoch(self) -> None:
        self._is_under_way = False
        self._step.variables.pull(is_settled=True)
        self._results()

    def _add_all(self, reports: Sequence[StepReport]) -> None:
        for report in reports:
            self._step.variables.add(report.counts)
            self._totals = [total + each for total, each in zip(self._totals, report.metrics, strict=True)]
            self._count()
            count_rows(report.rows)
            self._added.append(report)

    def _results(self) -> Mapping[str, Any]:
        """Set this process's metrics to the counts of all steps of the epoch, and return their results."""
        found: Mapping[str, Any] = self._show(*self._totals)
        return found

    def _shown(self, *totals: Any) -> Any:
        for metric, initial, total in zip(self._step.metrics, self._step.initial, totals, strict=True):
            metric.assign(tf.cast(initial + total, metric.dtype))
        return dict(self._model.get_metrics_result())
