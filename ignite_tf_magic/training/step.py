"""One step of all workers, as TensorFlow traces it or runs it eagerly: what each worker contributes, and the result.

A step's batch is the rows of all workers together: R rows in all, r of them on this worker. A worker's gradient is
multiplied by r, added up over all workers and divided by R, so it is an average over workers, weighted by rows. A value
that is a sum over rows, not a mean, is multiplied by R / r first (`Step.share`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.group import WorkerGroup

# Places in what the workers agree on in each step.
ROWS, STOP, SAVE, REPORT = range(4)
NUM_FLAGS = 4
# Where both frameworks leave the mask of a tensor.
KERAS_MASK = "_keras_mask"
# Where they leave what an activation was given: losses of probabilities compute from that.
KERAS_LOGITS = "_keras_logits"

_steps: list[Step] = []


def all_rows(*tensors: Any) -> Any:
    """Return tensors with the rows of all workers, for code that uses a batch as a whole.

    What is computed from them is what one process computes, on every worker, and its gradient is right. Use it for
    losses that compare rows with each other, or that have a mean of their own. All workers must call it. Outside of a
    step of several workers the tensors are returned unchanged.

    Args:
        tensors: Of one dimension or more, the first being rows; of numbers or booleans.

    Returns:
        One tensor, or a tuple of as many as were passed.
    """
    step = current_step()
    if step is None:
        return tensors[0] if len(tensors) == 1 else tensors
    wholes = step.gather(tensors)
    return wholes[0] if len(wholes) == 1 else tuple(wholes)


def current_step() -> Step | None:
    """Return the step that is being traced or run; None outside of steps, and while a step is `alone`."""
    return _steps[-1] if _steps and not _steps[-1].is_alone else None


def is_in_step() -> bool:
    """Return whether a step is being traced or run, `alone` or not."""
    return bool(_steps)


class StepState:
    """What the steps of one model share.

    A function within a step may be traced once and used in many traces of the step, so it refers to variables: a tensor
    of one trace cannot be used in another.

    Attributes:
        wishes: What this worker wants of the others, float32[NUM_FLAGS].
        agreed: The sum of the workers' wishes in the last step, float32[NUM_FLAGS].
        rows: Rows of this worker's batch in the step under way, float32.
        rows_done: Rows of all workers in the steps of training since it was last taken, float64.
        gathered_metrics: Metrics that count the rows of all workers on each worker, by id.
        shown_metrics: Metrics whose result a step has asked for, by id.
    """

    def __init__(self) -> None:
        self.wishes = tf.Variable(tf.zeros([NUM_FLAGS]), trainable=False, name="wishes")
        self.agreed = tf.Variable(tf.zeros([NUM_FLAGS]), trainable=False, name="agreed")
        self.rows = tf.Variable(0.0, trainable=False, name="rows")
        self.rows_done = tf.Variable(0.0, trainable=False, name="rows_done", dtype=tf.float64)
        self.gathered_metrics: dict[int, Any] = {}
        self.shown_metrics: dict[int, Any] = {}


class RowExchange(ABC):
    """What workers exchange in a step, each for the rows of its own batch."""

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group
        self.is_alone = False
        # By graph: a tensor of one cannot be used in another, as that of a branch.
        self._totals: dict[int, tuple[Any, Any]] = {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let everything be as in one process: what is computed here is that of all workers already."""
        before, self.is_alone = self.is_alone, True
        try:
            yield
        finally:
            self.is_alone = before

    @property
    @abstractmethod
    def rows(self) -> Any:
        """The rows of this worker, float32."""

    @property
    def is_divided(self) -> Any:
        """Whether this worker has every n-th row of a batch that all workers have; a boolean or a variable."""
        return False

    def total_rows(self) -> Any:
        """Return the rows of all workers, float32."""
        graph = tf.compat.v1.get_default_graph()
        if id(graph) not in self._totals:
            self.totals([])
        return self._totals[id(graph)][1]

    def totals(self, values: Sequence[Any]) -> list[Any]:
        """Return values added up over all workers."""
        *sums, rows = self.group.sum([*values, self.rows])
        self._note_total(rows)
        return sums

    def share(self) -> Any:
        """Return R / r, by which a worker's part of a sum over all rows is multiplied; 0 without rows."""
        return tf.math.divide_no_nan(self.total_rows(), self.rows)

    def weight(self) -> Any:
        """Return r / R, the weight of a worker's mean in that over all rows; 0 where no worker has rows."""
        return tf.math.divide_no_nan(self.rows, self.total_rows())

    def or_zero(self, value: Any) -> Any:
        """Return a value, or zeros where this worker has no rows."""
        return tf.where(self.rows > 0, value, tf.zeros_like(value))

    def average(self, values: Sequence[Any]) -> list[Any]:
        """Return the averages of values over the workers, weighted by rows; 0 where no worker has rows."""
        means, sums = self.group.weighted_means(values, tf.reshape(self.rows, [1]), 0)
        self._note_total(sums[0])
        return means

    def means(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of variables, averaged over the workers by rows.

        A sparse gradient stays sparse, with the lookups of all workers: optimizers treat it as that of one process. A
        dense gradient has its variable's shape, so that all workers send it in the same way.
        """
        if len(gradients) != len(variables):
            return list(gradients)  # the optimizer refuses them, in its own words
        dense = [at for at, each in enumerate(gradients) if _is_dense(each)]
        means = self._average_of_step([_shaped(gradients[at], variables[at]) for at in dense])
        found = [
            self._sparse_mean(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients
        ]
        for at, value in zip(dense, means, strict=True):
            found[at] = value
        return found

    def _average_of_step(self, values: Sequence[Any]) -> list[Any]:
        return self.average(values)

    def _note_total(self, rows: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        self._totals[id(graph)] = graph, rows

    def _sparse_mean(self, gradient: Any) -> Any:
        values = gradient.values * tf.cast(self.weight(), gradient.values.dtype)
        values, indices = self._gathered([values, gradient.indices], is_divided=False)
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    # Rows of all workers

    def gather(self, tensors: Sequence[Any]) -> list[Any]:
        """Return tensors with the rows of all workers, those of the first worker first.

        Of batches that all workers have, and have divided, the rows come in the order that they had. What is computed
        from them is the same on all workers, and each passes the gradient of its own rows back. Where other dimensions
        differ, rows are filled up with zeros.

        Args:
            tensors: Of one dimension or more, the first being rows; of the same dtypes and ranks on all workers.
        """
        return self._gathered(tensors, self.is_divided)

    def _gathered(self, tensors: Sequence[Any], is_divided: Any) -> list[Any]:
        own = [tf.convert_to_tensor(each) for each in tensors]
        layouts = self._layouts(own, is_divided)
        parts = [layout.placed(tf.stop_gradient(each)) for layout, each in zip(layouts, own, strict=True)]
        wholes = self.group.join(parts)
        return [
            self._linked(mine, whole, layout) if mine.dtype.is_floating else layout.in_order(whole)
            for mine, whole, layout in zip(own, wholes, layouts, strict=True)
        ]

    def gather_all(self, structure: Any) -> Any:
        """Return a structure in which all tensors with rows have those of all workers, and their masks and logits, too.

        A tensor that is one number becomes the mean of the workers' over the rows. What is no tensor stays.
        """
        flat = tf.nest.flatten(structure)
        tensors = {at: tf.convert_to_tensor(each) for at, each in enumerate(flat) if _is_tensor(each)}
        rows = {at: each for at, each in tensors.items() if each.shape.rank}
        given = {at: flat[at] for at in rows}
        masks, logits = _marks(given, KERAS_MASK), _marks(given, KERAS_LOGITS)
        wholes = self.gather([*rows.values(), *masks.values(), *logits.values()]) if rows else []
        found = dict(zip(rows, wholes, strict=False))
        for at, mask in zip(masks, wholes[len(rows) :], strict=False):
            setattr(found[at], KERAS_MASK, mask)
        for at, whole in zip(logits, wholes[len(rows) + len(masks) :], strict=True):
            setattr(found[at], KERAS_LOGITS, whole)
        for at in tensors.keys() - rows.keys():
            number = tensors[at]
            weighed = self.or_zero(tf.cast(number, tf.float32) * self.weight())
            found[at] = tf.cast(self.group.sum([weighed])[0], number.dtype)
        return tf.nest.pack_sequence_as(structure, [found.get(at, each) for at, each in enumerate(flat)])

    def _layouts(self, tensors: Sequence[Any], is_divided: Any) -> list[_Layout]:
        shapes = [tf.shape(each) for each in tensors]
        # The row that stands in for none is left out.
        shapes = [tf.where(self.rows > 0, each, tf.concat([[0], each[1:]], 0)) for each in shapes]
        own = tf.concat(shapes, 0)
        place = self.group.place
        (table,) = self.group.sum([tf.scatter_nd([[place.index]], [own], [place.size, tf.size(own)])])
        by_tensor = tf.split(table, [each.shape.rank for each in tensors], axis=1)
        return [_Layout(shapes, place.index, tf.convert_to_tensor(is_divided)) for shapes in by_tensor]

    def _linked(self, mine: Any, whole: Any, layout: _Layout) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def link(own: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                # Weighted by this worker's rows later: so by the share now.
                return layout.taken(upstream * tf.cast(self.share(), upstream.dtype), tf.shape(own))

            return layout.in_order(whole), gradient

        return link(mine)


class Step(RowExchange):
    """One step of a model's `fit` or `evaluate`.

    Args:
        group: The workers.
        model: What is trained.
        rows: Rows of this worker's part of the batch, int32; with none, a row of zeros stands in.
        state: What the steps of the model share.
        statistics: Variables that are not trained but change in a step, such as those of BatchNormalization.
        value_of: Returns a variable's value.
        is_divided: A boolean variable: whether this worker has every n-th row of a batch that all workers have.
    """

    def __init__(
        self,
        group: WorkerGroup,
        model: Any,
        rows: Any,
        state: StepState,
        statistics: Sequence[Any],
        value_of: Callable[[Any], Any],
        is_divided: Any,
    ) -> None:
        super().__init__(group)
        self.model = model
        self.state = state
        # Losses that `compile` was given are those of all rows; others, of this worker's.
        self.is_in_compiled_loss = False
        # What metrics have returned as their results in this step, and the metrics, by the id of what they returned.
        self.results: dict[int, tuple[Any, Any]] = {}
        # Where every batch of this worker has the same number of rows.
        self.num_static_rows = None if tf.executing_eagerly() else tf.get_static_value(rows)
        self._rows = tf.cast(rows, tf.float32)
        state.rows.assign(self._rows)
        self._value_of = value_of
        self._is_divided = is_divided
        self._statistics = [each for each in statistics if tf.as_dtype(each.dtype).is_floating]
        self._before = [tf.identity(value_of(each)) for each in self._statistics]
        self._num_meetings = 0
        self._graph = tf.compat.v1.get_default_graph()

    @property
    def rows(self) -> Any:
        """The rows of this worker, float32."""
        is_within = tf.compat.v1.get_default_graph() is not self._graph
        return self.state.rows.read_value() if is_within else self._rows

    @property
    def is_divided(self) -> Any:
        """Whether this worker has every n-th row of a batch that all workers have; a boolean variable."""
        return self._is_divided

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Be the current step."""
        _steps.append(self)
        try:
            with _Context(self):
                yield
        finally:
            _steps.pop()

    @contextmanager
    def in_compiled_loss(self) -> Iterator[None]:
        """Compute the loss that `compile` was given."""
        before, self.is_in_compiled_loss = self.is_in_compiled_loss, True
        try:
            yield
        finally:
            self.is_in_compiled_loss = before

    # Gradients

    def _average_of_step(self, values: Sequence[Any]) -> list[Any]:
        """Average gradients. The first time in a step all else goes along: wishes, and changes of statistics."""
        # Of a branch nobody knows, while it is traced, whether a step goes there: `finish` does what each step must.
        if tf.compat.v1.get_default_graph() is not self._graph:
            return self.average(values)
        self._num_meetings += 1
        return self._average_of_all(values) if self._num_meetings == 1 else self.average(values)

    def finish(self) -> None:
        """End a training step: who has met nobody yet, meets the others now; statistics are those of all rows."""
        if not self._num_meetings:
            self._average_of_step([])
        elif self._num_meetings > 1:  # as a GAN: what came after the first optimizer has changed some, too
            self._agree_on_statistics(self.average(self._changes()))

    def _average_of_all(self, values: Sequence[Any]) -> list[Any]:
        flags = tf.tensor_scatter_nd_update(self.state.wishes, [[ROWS]], [self.rows])
        means, agreed = self.group.weighted_means([*values, *self._changes()], flags, ROWS)
        self.state.agreed.assign(agreed)
        self.state.rows_done.assign_add(tf.cast(agreed[ROWS], tf.float64))
        self._note_total(agreed[ROWS])
        self._agree_on_statistics(means[len(values) :])
        return means[: len(values)]

    def _changes(self) -> list[Any]:
        pairs = zip(self._statistics, self._before, strict=True)
        return [self._value_of(variable) - before for variable, before in pairs]

    def _agree_on_statistics(self, changes: Sequence[Any]) -> None:
        for variable, before, change in zip(self._statistics, self._before, changes, strict=True):
            variable.assign(before + change)

    def sum_of_layers(self, values: Sequence[Any]) -> list[Any]:
        """Add up what layers ask to be added up, as synchronised BatchNormalization does; with its gradient."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def add_up(*own: Any) -> Any:
            def gradient(*upstream: Any) -> list[Any]:
                # Later each worker's gradient is weighted by its rows, and so must be what others pass on here.
                weighted = [self.or_zero(each * tf.cast(self.rows, each.dtype)) for each in upstream]
                sums = self.group.sum(weighted)
                return [tf.math.divide_no_nan(each, tf.cast(self.rows, each.dtype)) for each in sums]

            return self.group.sum([self.or_zero(each) for each in own]), gradient

        sums = add_up(*values)
        return list(sums) if isinstance(sums, (list, tuple)) else [sums]


def _is_dense(gradient: Any) -> bool:
    return gradient is not None and not isinstance(gradient, tf.IndexedSlices)


def _shaped(gradient: Any, variable: Any) -> Any:
    tensor = tf.convert_to_tensor(gradient)
    return tensor if tensor.shape.is_fully_defined() else tf.ensure_shape(tensor, variable.shape)


def _marks(tensors: Mapping[int, Any], name: str) -> dict[int, Any]:
    """Collect what Keras has hung on tensors, of those that have it."""
    found = {at: getattr(tensor, name, None) for at, tensor in tensors.items()}
    return {at: mark for at, mark in found.items() if mark is not None}


def _is_tensor(thing: Any) -> bool:
    return isinstance(thing, (tf.Tensor, np.ndarray)) or hasattr(thing, "__array__")


class _Layout:
    """Where each worker's rows lie in a tensor with those of all.

    Args:
        shapes: Of each worker's tensor, int32[workers, rank].
        index: This worker.
        is_divided: Whether each worker has every n-th row of what all have: then rows are put in that order.
    """

    def __init__(self, shapes: Any, index: int, is_divided: Any) -> None:
        counts = shapes[:, 0]
        self._order = _order_of(counts, is_divided)
        self._start, self._own_shape = tf.reduce_sum(counts[:index]), shapes[index]
        self._shape = tf.concat([[tf.reduce_sum(counts)], tf.reduce_max(shapes[:, 1:], axis=0)], 0)

    def placed(self, own: Any) -> Any:
        """Return zeros for all rows, with this worker's in their place."""
        rest = self._shape - self._own_shape
        before = tf.concat([[self._start], tf.zeros_like(rest[1:])], 0)
        padded = tf.pad(own[: self._own_shape[0]], tf.stack([before, rest - before], axis=1))
        return tf.ensure_shape(padded, [None, *own.shape[1:]])

    def in_order(self, whole: Any) -> Any:
        """Return the rows of all workers, placed one worker's after another's, in their order."""
        return tf.ensure_shape(tf.gather(whole, self._order), whole.shape)

    def taken(self, whole: Any, shape: Any) -> Any:
        """Return this worker's rows of those in order, in the shape of its own, a row that stands in being zero."""
        whole = tf.gather(whole, tf.argsort(self._order))
        begin = tf.concat([[self._start], tf.zeros_like(self._own_shape[1:])], 0)
        own = tf.slice(whole, begin, self._own_shape)
        return tf.pad(own, tf.stack([tf.zeros_like(shape), shape - self._own_shape], axis=1))


def _order_of(counts: Any, is_divided: Any) -> Any:
    """Return which rows come when, of those of all workers one after the other; each worker has so many."""
    num_workers, total = tf.size(counts), tf.reduce_sum(counts)
    workers = tf.repeat(tf.range(num_workers), counts)
    places = tf.range(total) - tf.gather(tf.cumsum(counts, exclusive=True), workers)
    return tf.where(is_divided, tf.argsort(places * num_workers + workers), tf.range(total))


class _Context(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """Where layers find the other workers. There is no strategy, so Keras divides no loss by a number of replicas."""

    def __init__(self, step: Step) -> None:
        super().__init__(tf.distribute.get_strategy(), 0)
        self._step = step

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Add up over the workers; the mean is that of the workers' values."""
        del options
        if self._step.is_alone:
            return value
        sums = self._step.sum_of_layers(tf.nest.flatten(value))
        if tf.distribute.ReduceOp(getattr(reduce_op, "value", reduce_op)) is tf.distribute.ReduceOp.MEAN:
            sums = [each / self._step.group.place.size for each in sums]
        return tf.nest.pack_sequence_as(value, sums)
