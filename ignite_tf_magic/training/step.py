"""One step of all workers, traced by TensorFlow or run eagerly: what the workers exchange.

A step's batch consists of the rows of all workers: R rows in total, r of them on this worker. Each worker's gradient is
multiplied by r, added up over all workers and divided by R. The result is the average over workers, weighted by rows. A
value that is a sum over rows instead of a mean is first multiplied by R / r (`Step.share`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.group import WorkerGroup

# Indices into the vector that the workers exchange in each step.
ROWS, STOP, SAVE, REPORT = range(4)
NUM_FLAGS = 4
# The attribute in which both frameworks store the mask of a tensor.
KERAS_MASK = "_keras_mask"
# The attribute in which they store the input of an activation. Losses of probabilities compute from it.
KERAS_LOGITS = "_keras_logits"

_steps: list[Step] = []


def all_rows(*tensors: Any) -> Any:
    """Return tensors with the rows of all workers, for code that needs the whole batch.

    Each worker then computes the same as a single process would, with the correct gradient. Use it for losses that
    compare rows with each other, or that have a mean of their own. All workers must call it. Outside of a step of
    several workers it returns the tensors unchanged.

    Args:
        tensors: Numbers or booleans with at least one dimension; the first dimension is rows.

    Returns:
        One tensor, or a tuple of as many as were passed.
    """
    step = current_step()
    if step is None:
        return tensors[0] if len(tensors) == 1 else tensors
    wholes = step.gather(tensors)
    return wholes[0] if len(wholes) == 1 else tuple(wholes)


def current_step() -> Step | None:
    """Return the step being traced or run, or None outside of steps and while a step is `alone`."""
    return _steps[-1] if _steps and not _steps[-1].is_alone else None


def is_in_step() -> bool:
    """Return whether a step is being traced or run, `alone` or not."""
    return bool(_steps)


class StepState:
    """The state that all steps of one model share.

    The state is in variables because a function inside a step may be traced once and used in many traces of the step. A
    tensor of one trace cannot be used in another.

    Attributes:
        wishes: This worker's requests to all workers, float32[NUM_FLAGS].
        agreed: The sum of the workers' requests in the last step, float32[NUM_FLAGS].
        rows: Rows of this worker's batch in the current step, float32.
        rows_done: Rows that all workers trained since the value was last reset, float64.
        gathered_metrics: Metrics that count the rows of all workers on each worker, by id.
        shown_metrics: Metrics whose results a step has read, by id.
    """

    def __init__(self) -> None:
        self.wishes = tf.Variable(tf.zeros([NUM_FLAGS]), trainable=False, name="wishes")
        self.agreed = tf.Variable(tf.zeros([NUM_FLAGS]), trainable=False, name="agreed")
        self.rows = tf.Variable(0.0, trainable=False, name="rows")
        self.rows_done = tf.Variable(0.0, trainable=False, name="rows_done", dtype=tf.float64)
        self.gathered_metrics: dict[int, Any] = {}
        self.shown_metrics: dict[int, Any] = {}


class RowExchange(ABC):
    """The exchange between workers in a step, each with the rows of its own batch."""

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group
        self.is_alone = False
        # By graph, because a tensor of one graph, such as a branch, cannot be used in another.
        self._totals: dict[int, tuple[Any, Any]] = {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Turn off the exchange in a block that already computes on the rows of all workers."""
        before, self.is_alone = self.is_alone, True
        try:
            yield
        finally:
            self.is_alone = before

    @property
    @abstractmethod
    def rows(self) -> Any:
        """The number of this worker's rows, float32."""

    @property
    def is_divided(self) -> Any:
        """Whether this worker has every n-th row of a batch common to all workers: a boolean or a variable."""
        return False

    def total_rows(self) -> Any:
        """Return the number of rows of all workers, float32."""
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
        """Return R / r, the factor for this worker's part of a sum over all rows, or 0 without rows."""
        return tf.math.divide_no_nan(self.total_rows(), self.rows)

    def weight(self) -> Any:
        """Return r / R, the weight of this worker's mean in the mean over all rows, or 0 if no worker has rows."""
        return tf.math.divide_no_nan(self.rows, self.total_rows())

    def or_zero(self, value: Any) -> Any:
        """Return a value, or zeros if this worker has no rows."""
        return tf.where(self.rows > 0, value, tf.zeros_like(value))

    def average(self, values: Sequence[Any]) -> list[Any]:
        """Return the averages of values over the workers, weighted by rows, or 0 if no worker has rows."""
        means, sums = self.group.weighted_means(values, tf.reshape(self.rows, [1]), 0)
        self._note_total(sums[0])
        return means

    def means(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of variables, averaged over the workers and weighted by rows.

        A sparse gradient stays sparse and contains the lookups of all workers, so optimizers treat it like that of one
        process. A dense gradient gets its variable's shape, so all workers exchange it in the same form.
        """
        if len(gradients) != len(variables):
            return list(gradients)  # the optimizer raises its own error
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
        """Return tensors with the rows of all workers, in the order of the workers.

        If the workers have divided a common batch, the rows have the order of that batch. The result is the same on all
        workers, and each worker passes the gradient of its own rows back. If other dimensions differ between workers,
        rows are padded with zeros.

        Args:
            tensors: Tensors with at least one dimension, the first being rows. Their dtypes and ranks must be the same
                on all workers.
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
        """Return a structure whose tensors, masks and logits have the rows of all workers.

        A scalar becomes the mean of the workers' values, weighted by rows. Anything but a tensor stays as it is.
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
        # Leave out the placeholder row of a worker without rows.
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
                # This gradient is later weighted by r / R, so it is multiplied by R / r now.
                return layout.taken(upstream * tf.cast(self.share(), upstream.dtype), tf.shape(own))

            return layout.in_order(whole), gradient

        return link(mine)


class Step(RowExchange):
    """One step of a model's `fit` or `evaluate`.

    Args:
        group: The workers.
        model: The trained model.
        rows: Number of rows in this worker's part of the batch, int32. If it is 0, a row of zeros is the placeholder.
        state: The state that all steps of the model share.
        statistics: Variables that are not trained but change in a step, such as those of BatchNormalization.
        value_of: Returns a variable's value.
        is_divided: A boolean variable: whether this worker has every n-th row of a batch common to all workers.
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
        # A loss passed to `compile` is computed over all rows, any other loss over this worker's rows.
        self.is_in_compiled_loss = False
        # The metric results of this step, each with its metric, by the id of the result.
        self.results: dict[int, tuple[Any, Any]] = {}
        # Known only if every batch of this worker has the same number of rows.
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
        """The number of this worker's rows, float32."""
        is_within = tf.compat.v1.get_default_graph() is not self._graph
        return self.state.rows.read_value() if is_within else self._rows

    @property
    def is_divided(self) -> Any:
        """Whether this worker has every n-th row of a batch common to all workers: a boolean variable."""
        return self._is_divided

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Make this the current step while the block lasts."""
        _steps.append(self)
        try:
            with _Context(self):
                yield
        finally:
            _steps.pop()

    @contextmanager
    def in_compiled_loss(self) -> Iterator[None]:
        """Mark a block that computes the loss passed to `compile`."""
        before, self.is_in_compiled_loss = self.is_in_compiled_loss, True
        try:
            yield
        finally:
            self.is_in_compiled_loss = before

    # Gradients

    def _average_of_step(self, values: Sequence[Any]) -> list[Any]:
        """Average gradients. The first call in a step also exchanges wishes and changes of statistics."""
        # A branch may not run in every step. `finish` does the exchange that each step must do once.
        if tf.compat.v1.get_default_graph() is not self._graph:
            return self.average(values)
        self._num_meetings += 1
        return self._average_of_all(values) if self._num_meetings == 1 else self.average(values)

    def finish(self) -> None:
        """End a training step: make the exchange if no optimizer has, and average statistics over all rows."""
        if not self._num_meetings:
            self._average_of_step([])
        elif self._num_meetings > 1:  # as in a GAN: statistics have changed since the first optimizer
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
        """Add up values for layers such as synchronized BatchNormalization, with their gradient."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def add_up(*own: Any) -> Any:
            def gradient(*upstream: Any) -> list[Any]:
                # Each worker's gradient is later weighted by its rows, so each upstream gradient is, too.
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
    """Return an attribute that Keras sets on tensors, for those tensors that have it."""
    found = {at: getattr(tensor, name, None) for at, tensor in tensors.items()}
    return {at: mark for at, mark in found.items() if mark is not None}


def _is_tensor(thing: Any) -> bool:
    return isinstance(thing, (tf.Tensor, np.ndarray)) or hasattr(thing, "__array__")


class _Layout:
    """The positions of each worker's rows in a tensor with the rows of all workers.

    Args:
        shapes: The shape of each worker's tensor, int32[workers, rank].
        index: This worker's number.
        is_divided: Whether each worker has every n-th row of a common batch, whose order is then restored.
    """

    def __init__(self, shapes: Any, index: int, is_divided: Any) -> None:
        counts = shapes[:, 0]
        self._order = _order_of(counts, is_divided)
        self._start, self._own_shape = tf.reduce_sum(counts[:index]), shapes[index]
        self._shape = tf.concat([[tf.reduce_sum(counts)], tf.reduce_max(shapes[:, 1:], axis=0)], 0)

    def placed(self, own: Any) -> Any:
        """Return a tensor for all rows, with this worker's rows at their positions and zeros elsewhere."""
        rest = self._shape - self._own_shape
        before = tf.concat([[self._start], tf.zeros_like(rest[1:])], 0)
        padded = tf.pad(own[: self._own_shape[0]], tf.stack([before, rest - before], axis=1))
        return tf.ensure_shape(padded, [None, *own.shape[1:]])

    def in_order(self, whole: Any) -> Any:
        """Reorder rows that are concatenated worker by worker."""
        return tf.ensure_shape(tf.gather(whole, self._order), whole.shape)

    def taken(self, whole: Any, shape: Any) -> Any:
        """Return this worker's rows of the reordered tensor, in the given shape. A placeholder row is zero."""
        whole = tf.gather(whole, tf.argsort(self._order))
        begin = tf.concat([[self._start], tf.zeros_like(self._own_shape[1:])], 0)
        own = tf.slice(whole, begin, self._own_shape)
        return tf.pad(own, tf.stack([tf.zeros_like(shape), shape - self._own_shape], axis=1))


def _order_of(counts: Any, is_divided: Any) -> Any:
    """Return the order of rows, as indices into the rows concatenated worker by worker.

    `counts` is the number of rows of each worker.
    """
    num_workers, total = tf.size(counts), tf.reduce_sum(counts)
    workers = tf.repeat(tf.range(num_workers), counts)
    places = tf.range(total) - tf.gather(tf.cumsum(counts, exclusive=True), workers)
    return tf.where(is_divided, tf.argsort(places * num_workers + workers), tf.range(total))


class _Context(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """The replica context through which layers reach the other workers.

    No strategy is active, so Keras does not divide losses by the number of replicas.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(tf.distribute.get_strategy(), 0)
        self._step = step

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Add up or average a value over the workers. The mean is not weighted by rows."""
        del options
        if self._step.is_alone:
            return value
        sums = self._step.sum_of_layers(tf.nest.flatten(value))
        if tf.distribute.ReduceOp(getattr(reduce_op, "value", reduce_op)) is tf.distribute.ReduceOp.MEAN:
            sums = [each / self._step.group.place.size for each in sums]
        return tf.nest.pack_sequence_as(value, sums)
