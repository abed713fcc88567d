"""Common parts of the training cases: framework, data split over workers, small models, and a list of all cases."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

Case = Callable[[Any], dict[str, Any]]
CASES: dict[str, Case] = {}


# Cases of features that only Keras 3 has.
OF_KERAS_3 = {"accumulated_gradients", "mean_by_weights", "searched_by_each_then_trained_by_all"}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def cases_of(framework: str) -> list[str]:
    """Return the names of all cases that a framework supports."""
    return [name for name in CASES if framework == "keras" or name not in OF_KERAS_3]


class Setting:
    """The framework and data for cases, and the worker that this process is."""

    def __init__(self, framework: str, shares: tuple[float, ...]) -> None:
        import tensorflow as tf

        from ignite_tf_magic.training.group import worker_group

        self.tf = tf
        self.keras = sys.modules[framework]
        self.framework = framework
        self.place = worker_group().place
        self.shares = shares
        random = np.random.default_rng(5)
        self.images = random.normal(size=(500, 8, 8, 1)).astype(np.float32)
        self.labels = (np.abs(self.images.sum(axis=(1, 2, 3))) % 10).astype(np.int32)
        self.flat = self.images.reshape(len(self.images), -1)
        self.test = self.images[:133], self.labels[:133]
        self.test_flat = self.flat[:133], self.labels[:133]
        lengths = random.integers(1, 13, len(self.images))
        self.tokens = random.integers(1, 20, (len(self.images), 12)) * (np.arange(12) < lengths[:, None])
        self.tokens = self.tokens.astype(np.int32)

    def dealt(
        self,
        batch: int = 64,
        *,
        flat: bool = False,
        data: Any = None,
        more: Callable[..., Any] | None = None,
        equal_steps: str = "pad",
    ) -> Any:
        """Return data (by default the images) as a dataset of this worker's part of each batch, given by its share."""
        tf = self.tf
        data = (self.flat if flat else self.images, self.labels) if data is None else data
        chosen = list(self._chosen(len(tf.nest.flatten(data)[0]), batch, equal_steps))

        def batches() -> Any:
            for parts in chosen:
                yield tf.nest.map_structure(itemgetter(self.own(parts)), data)

        spec = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), data)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = tf.data.Dataset.from_generator(batches, output_signature=spec).with_options(options)
        if more:
            dataset = dataset.map(more)
        return dataset.apply(tf.data.experimental.assert_cardinality(len(chosen)))

    def parts(self, batch: int = 64, *, data: Any) -> Any:
        """Yield, for each batch, a list of the workers' parts."""
        for parts in self._chosen(len(data[0]), batch, "pad"):
            yield [self.tf.nest.map_structure(itemgetter(part), data) for part in parts]

    def own(self, parts: list[Any]) -> Any:
        """Return this worker's part of a batch; a single process has all parts, concatenated."""
        if self.place.size > 1:
            return parts[self.place.index]
        return self.tf.nest.map_structure(lambda *each: np.concatenate(each), *parts)

    def _chosen(self, total: int, batch: int, equal_steps: str) -> Any:
        """Yield, for each batch, the row numbers of each worker's part."""
        from ignite_tf_magic.dataset.deal import EqualSteps, GlobalBatchPlan

        bounds = self.bounds(total)
        rows = tuple(int(number) for number in np.diff(bounds))
        deal = GlobalBatchPlan(rows, batch, EqualSteps(equal_steps))
        sizes = np.stack([deal.sizes(worker) for worker in range(len(rows))])
        ends = sizes.cumsum(axis=1)
        for step in range(deal.num_steps):
            yield [
                bounds[w] + np.arange(ends[w, step] - sizes[w, step], ends[w, step]) % rows[w]
                for w in range(len(rows))
            ]

    def bounds(self, total: int) -> np.ndarray:
        """Return the bounds of each worker's rows."""
        return np.round(np.cumsum((0.0, *self.shares)) * total).astype(int)

    def whole(self, batch: int = 64, *, flat: bool = False) -> Any:
        """Return a dataset of all images, the same on every worker."""
        x = self.flat if flat else self.images
        return self.tf.data.Dataset.from_tensor_slices((x, self.labels)).batch(batch)

    def tests(self, *, flat: bool = False) -> Any:
        x, y = self.test
        return self.tf.data.Dataset.from_tensor_slices((x.reshape(len(x), -1) if flat else x, y)).batch(50)

    def seeded(self) -> None:
        """Seed each worker differently; the chief's weights are the ones used."""
        self.keras.utils.set_random_seed(11 + self.place.index)

    def dense(self, **options: Any) -> Any:
        self.seeded()
        layers = self.keras.layers
        model = self.keras.Sequential([self.keras.Input([64]), layers.Dense(32, "relu"), layers.Dense(10)])
        return self.compiled(model, **options)

    def conv(self, *between: Any, **options: Any) -> Any:
        self.seeded()
        layers = self.keras.layers
        model = self.keras.Sequential(
            [
                self.keras.Input([8, 8, 1]),
                layers.Conv2D(8, 3, activation="relu"),
                *between,
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
        return self.compiled(model, **options)

    def compiled(
        self, model: Any, optimizer: Any = None, metrics: Any = ("accuracy",), **options: Any
    ) -> Any:
        keras = self.keras
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = optimizer or keras.optimizers.Adam(0.003)
        model.compile(optimizer, options.pop("loss", loss), metrics=list(metrics) or None, **options)
        return model


def result(model: Any, history: Any = None, **more: Any) -> dict[str, Any]:
    # tf_keras includes the variables of metrics in the weights.
    counts = {id(each) for metric in model.metrics for each in metric.variables}
    weights = [np.asarray(each) for each in model.weights if id(each) not in counts]
    found = {f"weight {at}": weight for at, weight in enumerate(weights)}
    if history is not None:
        found |= {f"history {name}": np.array(values) for name, values in history.history.items()}
    return found | {name: np.asarray(value) for name, value in more.items()}
