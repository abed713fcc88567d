"""One step of all workers, as TensorFlow traces it or runs it eagerly: what each brings, and what all come to.

A step's batch is the rows of all workers together. What a worker computes from its own rows counts by the rows behind
it: R rows in all, r of them here. So a gradient goes round as r times itself and comes back as the sum divided by R,
and a loss that is to weigh otherwise is multiplied by R / r where it is made (`Step.share`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
# Operations that tell of a tensor no more than its shape.
_OF_SHAPES = ("Shape", "Size", "Rank")

_steps: list[Step] = []


def all_rows(*tensors: Any) -> Any:
    """Return tensors with the rows of all workers, for a `train_step` that looks at a batch as a whole.

    What is computed from them is what one process computes, on every worker, and its gradient is right: so for losses
    that compare rows with each other, or have a mean of their own. All workers call. Outside of a `fit` or `evaluate`
    on several workers tensors are given back as they are.

    Args:
        tensors: Of one dimension or more, the first being rows; of numbers or booleans.

    Returns:
        One tensor, or a tuple of as many as were given.
    """
    step = current_step()
    if step is None:
        return tensors[0] if len(tensors) == 1 else tensors
    step.has_all_rows = True
    wholes = step.gather(tensors)
    return wholes[0] if len(wholes) == 1 else tuple(wholes)


def current_step() -> Step | None:
    """Return the step that is being traced or run; None outside of steps, and where a step is alone for a while."""
    return _steps[-1] if _steps and not _steps[-1].is_alone else None


@dataclass(frozen=True)
class Flags:
    """What workers want, and what they agreed on in the last step: float32[NUM_FLAGS] variables."""

    wishes: Any
    agreed: Any


class Step:
    """One step.

    Args:
        group: The workers.
        model: What is trained.
        rows: Rows of this worker's part of the batch, int32; with none, a row of zeros stands in.
        flags: Go round with the first gradients.
        statistics: Variables that are not trained but change in a step, such as those of BatchNormalization.
        value_of: Returns a variable's value.
        is_divided: A boolean variable: whether this worker has every n-th row of a batch that all workers have.
    """

    def __init__(
        self,
        group: WorkerGroup,
        model: Any,
        rows: Any,
        flags: Flags,
        statistics: Sequence[Any],
        value_of: Callable[[Any], Any],
        is_divided: Any,
    ) -> None:
        self.group = group
        self.model = model
        self.rows = tf.cast(rows, tf.float32)
        self.is_alone = False
        # Metrics that have counted the rows of all workers, by id.
        self.gathered_metrics: dict[int, Any] = {}
        # Whether the script itself has taken the rows of all workers.
        self.has_all_rows = False
        # Losses that are those of all rows already, however they were reduced, by id.
        self.reduced: dict[int, Any] = {}
        # Outputs of the model for this worker's rows, as losses have been given them.
        self.outputs: list[Any] = []
        self._flags = flags
        self._value_of = value_of
        self._is_divided = is_divided
        self._statistics = [each for each in statistics if tf.as_dtype(each.dtype).is_floating]
        self._before = [tf.identity(value_of(each)) for each in self._statistics]
        self._num_meetings = 0
        self._graph = tf.compat.v1.get_default_graph()
        # By graph: a tensor of one cannot be used in another, as that of a branch.
        self._totals: dict[int, tuple[Any, Any]] = {}

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
    def alone(self) -> Iterator[None]:
        """Let everything be as in one process: what is computed here is that of all workers already."""
        before, self.is_alone = self.is_alone, True
        try:
            yield
        finally:
            self.is_alone = before

    # Rows

    def total_rows(self) -> Any:
        """Return the rows of all workers, float32."""
        graph = tf.compat.v1.get_default_graph()
        if id(graph) not in self._totals:
            self.totals([])
        return self._totals[id(graph)][1]

    def totals(self, values: Sequence[Any]) -> list[Any]:
        """Return values added up over all workers."""
        *sums, rows = self.group.sum([*values, self.rows])
        graph = tf.compat.v1.get_default_graph()
        self._totals[id(graph)] = graph, rows
        return sums

    def share(self) -> Any:
        """Return R / r, by which a worker's part of a sum over all rows is multiplied; 0 without rows."""
        return tf.math.divide_no_nan(self.total_rows(), self.rows)

    def weight(self) -> Any:
        """Return r / R, the weight of a worker's mean in that over all rows."""
        return tf.math.divide_no_nan(self.rows, self.total_rows())

    def or_zero(self, value: Any) -> Any:
        """Return a value, or zeros where this worker has no rows."""
        return tf.where(self.rows > 0, value, tf.zeros_like(value))

    def keeps_order(self) -> bool:
        """Return whether the rows of all workers come in the order of one process: where all have the same batches."""
        with tf.init_scope():
            return bool(self._is_divided.numpy())

    def note_reduced(self, loss: Any) -> Any:
        """Return a loss of which nobody needs to look how it was reduced."""
        self.reduced[id(loss)] = loss
        return loss

    @property
    def statistics(self) -> list[tuple[Any, Any]]:
        """Variables that are not trained, and the values that they had when the step began."""
        return list(zip(self._statistics, self._before, strict=True))

    # Gradients

    def meet(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the means of gradients over the rows of all workers.

        The first time in a step all else goes along: wishes, and what the step has made of statistics. A sparse
        gradient stays one, of the lookups of all workers: optimizers treat it as that of one process.
        """
        dense = [at for at, each in enumerate(gradients) if _is_dense(each)]
        sent = [self._weighted(tf.convert_to_tensor(gradients[at])) for at in dense]
        # Of a branch nobody knows, while it is traced, whether a step goes there: `finish` does what each step must.
        is_in_branch = tf.compat.v1.get_default_graph() is not self._graph
        self._num_meetings += not is_in_branch
        if is_in_branch:
            sums = self.totals(sent)
        else:
            sums = self._meet_first(sent) if self._num_meetings == 1 else self.group.sum(sent)
        means = [
            self._sparse_mean(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients
        ]
        for at, value in zip(dense, sums, strict=True):
            means[at] = value / tf.cast(self.total_rows(), value.dtype)
        return means

    def finish(self) -> None:
        """End a training step: who has met nobody yet, meets the others now; statistics are those of all rows."""
        if not self._num_meetings:
            self.meet([])
        elif self._num_meetings > 1:  # as a GAN: what came after the first optimizer has changed some, too
            self._agree_on_statistics(self.group.sum(self._changes()))

    def _meet_first(self, sent: list[Any]) -> list[Any]:
        changes = self._changes()
        flags = tf.tensor_scatter_nd_update(self._flags.wishes, [[ROWS]], [self.rows])
        sums = self.group.sum([*sent, *changes, flags])
        self._flags.agreed.assign(sums[-1])
        graph = tf.compat.v1.get_default_graph()
        self._totals.setdefault(id(graph), (graph, sums[-1][ROWS]))
        self._agree_on_statistics(sums[len(sent) : -1])
        return sums[: len(sent)]

    def _changes(self) -> list[Any]:
        return [self._weighted(self._value_of(variable) - before) for variable, before in self.statistics]

    def _agree_on_statistics(self, changes: Sequence[Any]) -> None:
        for variable, before, change in zip(self._statistics, self._before, changes, strict=True):
            variable.assign(before + change / tf.cast(self.total_rows(), change.dtype))

    def _weighted(self, value: Any) -> Any:
        return self.or_zero(value * tf.cast(self.rows, value.dtype))

    def _sparse_mean(self, gradient: Any) -> Any:
        values = gradient.values * tf.cast(self.weight(), gradient.values.dtype)
        if depends_on_rows(gradient.indices):
            values, indices = self._gathered([values, gradient.indices], is_divided=False)
        else:
            values, indices = self._one_lookup(values, gradient.indices)
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def _one_lookup(self, values: Any, indices: Any) -> tuple[Any, Any]:
        """Add up the gradients of lookups that are the same for all rows, as of positions; the longest one's remain."""
        place = self.group.place
        own = tf.shape(indices)[0]
        (lengths,) = self.group.sum([tf.scatter_nd([[place.index]], [own], [place.size])])
        missing = tf.reduce_max(lengths) - own
        padded = tf.pad(values, [[0, missing], *[[0, 0]] * (values.shape.rank - 1)])
        row = tf.pad(indices, [[0, missing]])
        table = tf.scatter_nd([[place.index]], [row], tf.stack([place.size, tf.shape(row)[0]]))
        total, table = self.group.sum([self.or_zero(padded), table])
        return total, tf.reduce_max(table, axis=0)

    # Rows of all workers

    def gather(self, tensors: Sequence[Any]) -> list[Any]:
        """Return tensors with the rows of all workers, those of the first worker first.

        Of batches that all workers have, and have divided, the rows come in the order that they had. What is computed
        from them is the same on all workers, and each passes the gradient of its own rows back. Where other dimensions
        differ, rows are filled up with zeros.

        Args:
            tensors: Of one dimension or more, the first being rows; of the same dtypes and ranks on all workers.
        """
        return self._gathered(tensors, self._is_divided)

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

    def sum_of_layers(self, values: Sequence[Any]) -> list[Any]:
        """Add up what layers ask to be added up, as synchronised BatchNormalization does; with its gradient."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def add_up(*own: Any) -> Any:
            def gradient(*upstream: Any) -> list[Any]:
                # Later each worker's gradient is weighted by its rows, and so must be what others pass on here.
                sums = self.group.sum([self._weighted(each) for each in upstream])
                return [tf.math.divide_no_nan(each, tf.cast(self.rows, each.dtype)) for each in sums]

            return self.group.sum([self.or_zero(each) for each in own]), gradient

        sums = add_up(*values)
        return list(sums) if isinstance(sums, (list, tuple)) else [sums]


def _is_dense(gradient: Any) -> bool:
    return gradient is not None and not isinstance(gradient, tf.IndexedSlices)


def depends_on_rows(tensor: Any) -> bool:
    """Return whether a tensor is made of a batch's content, not only of its shape; where nobody can tell it is."""
    if tf.executing_eagerly():
        return True
    waiting, seen = [tensor], set()
    while waiting:
        operation = waiting.pop().op
        if operation.type in _OF_SHAPES or id(operation) in seen:
            continue
        seen.add(id(operation))
        if operation.type == "ReadVariableOp":  # the same on all workers
            continue
        is_source = not operation.inputs and operation.type != "Const"
        if is_source or operation.op_def.is_stateful or "Random" in operation.type:
            return True
        waiting += operation.inputs
    return False


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
