"""Data in all forms that Keras accepts, and layers that adapt to it."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from typing import Any

import numpy as np

from tests.training.case_setting import Setting, case, result

_WORDS = ["red", "green", "blue", "wide", "narrow", "early", "late", "cold", "warm", "far", "near", "old"]


@case
def arrays_of_each_worker(s: Setting) -> dict[str, Any]:
    """A worker trains on rows that it read itself. A batch holds a whole epoch, so the order does not matter."""
    bounds = s.bounds(len(s.flat))
    mine = slice(None) if s.place.size == 1 else slice(bounds[s.place.index], bounds[s.place.index + 1])
    model = s.dense()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        history = model.fit(
            s.flat[mine], s.labels[mine], batch_size=500, epochs=3, validation_data=s.test_flat, verbose=0
        )
        whole = model.evaluate(s.flat[mine], s.labels[mine], batch_size=500, return_dict=True, verbose=0)
    if s.place.is_chief and s.place.size > 1:
        assert "500 rows in total" in str([str(each.message) for each in told])
    return result(model, history, whole=[whole["loss"], whole["accuracy"]])


@case
def python_dataset(s: Setting) -> dict[str, Any]:
    """All workers get the same batches, and each trains on all of them, with the same result."""
    s.seeded()
    base = s.keras.utils.PyDataset if s.framework == "keras" else s.keras.utils.Sequence

    class Batches(base):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, at: int) -> Any:
            rows = slice(at * 60, at * 60 + 60)
            return s.flat[rows], s.labels[rows]

    model = s.dense()
    return result(model, model.fit(Batches(), epochs=2, shuffle=False, verbose=0))


def own_batches(s: Setting) -> list[tuple[Any, Any]]:
    """Return batches of 20 rows for this worker; workers have different numbers of them. One process has all rows."""
    bounds, steps = s.bounds(len(s.flat)), []
    workers = range(len(s.shares)) if s.place.size == 1 else [s.place.index]
    for first in range(0, len(s.flat), 20):
        rows = [np.arange(*ends)[first : first + 20] for ends in itertools.pairwise(bounds)]
        chosen = np.concatenate([rows[worker] for worker in workers])
        if len(chosen):
            steps.append((s.flat[chosen], s.labels[chosen]))
    return steps


@case
def generators_of_own_rows(s: Setting) -> dict[str, Any]:
    """Generators of different lengths, also for validation, and an endless one that yields None as weights."""

    def batches() -> Any:
        yield from own_batches(s)

    def endless() -> Any:
        while True:
            yield from ((x, y, None) for x, y in own_batches(s)[:2])

    model = s.dense(optimizer=s.keras.optimizers.SGD(0.1))
    model.fit(batches(), validation_data=batches(), epochs=1, verbose=0)
    history = model.fit(endless(), steps_per_epoch=7, epochs=2, verbose=0)
    whole = model.evaluate(batches(), return_dict=True, verbose=0)
    return result(model, history, whole=[whole["loss"], whole["accuracy"]])


@case
def python_datasets_of_own_rows(s: Setting) -> dict[str, Any]:
    """Datasets of different lengths, also for validation."""
    base = s.keras.utils.PyDataset if s.framework == "keras" else s.keras.utils.Sequence
    steps, ends = own_batches(s), []

    class Batches(base):
        def __len__(self) -> int:
            return len(steps)

        def __getitem__(self, at: int) -> Any:
            return steps[at]

        def on_epoch_end(self) -> None:
            ends.append(1)

    model = s.dense()
    history = model.fit(Batches(), validation_data=Batches(), epochs=2, shuffle=False, verbose=0)
    whole = model.evaluate(Batches(), return_dict=True, verbose=0)
    assert ends
    return result(model, history, whole=[whole["loss"], whole["accuracy"]])


@case
def adapted_layers(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras = s.keras
    layers = keras.layers
    rows = s.dealt(data=s.flat)
    normal, binned = layers.Normalization(), layers.Discretization(num_bins=10)
    normal.adapt(rows)
    binned.adapt(s.dealt(64, data=s.flat[:, :1]))  # the bins depend on how rows form batches
    numbers = layers.IntegerLookup()
    numbers.adapt(s.dealt(data=s.tokens[:, :1].astype(np.int64)))
    model = s.compiled(keras.Sequential([keras.Input([64]), normal, layers.Dense(10)]))
    found = result(model, model.fit(s.dealt(flat=True), epochs=1, verbose=0))
    return found | {
        "bins": np.array(binned.bin_boundaries),
        "vocabulary": np.array(numbers.get_vocabulary()[1:], np.int64),
    }


@case
def texts(s: Setting) -> dict[str, Any]:
    """Each worker has its own texts; the vocabulary is that of all texts, and sequences are padded."""
    s.seeded()
    keras, tf = s.keras, s.tf
    layers = keras.layers
    random = np.random.default_rng(9)
    texts = np.array([" ".join(random.choice(_WORDS, random.integers(2, 9))) for _ in s.labels])
    vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=8)
    strings = s.dealt(data=np.arange(len(texts), dtype=np.int32)).map(
        lambda at: tf.gather(tf.constant(texts), at)
    )
    vectorize.adapt(strings)
    data = s.dealt(data=(np.arange(len(texts), dtype=np.int32), s.labels))
    data = data.map(lambda at, y: (vectorize(tf.gather(tf.constant(texts), at)), y))
    model = keras.Sequential(
        [
            keras.Input([8], dtype="int64"),
            layers.Embedding(10, 8, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(10),
        ]
    )
    found = result(s.compiled(model), model.fit(data, epochs=2, verbose=0))
    words = [_WORDS.index(word) for word in vectorize.get_vocabulary()[2:]]
    return found | {"vocabulary": np.array(words)}


@case
def adapted_to_own_rows(s: Setting) -> dict[str, Any]:
    """Layers adapt to arrays and datasets that do not declare that each worker has different rows."""
    keras, tf = s.keras, s.tf
    layers = keras.layers
    at = slice(None) if s.place.size == 1 else slice(*s.bounds(len(s.labels))[s.place.index :][:2])
    random = np.random.default_rng(9)
    texts = np.array([" ".join(random.choice(_WORDS, random.integers(2, 9))) for _ in s.labels])
    words, numbers = np.array(_WORDS)[s.labels], s.flat[:, :1]
    words[:10] = "seldom"  # only the first worker has this word

    def sliced(array: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(array[at]).batch(16)

    found = {}
    for name, given in (("arrays", lambda array: array[at]), ("datasets", sliced)):
        # A dataset's batches differ from those in one process, which changes bins slightly.
        exact = {"num_bins": 10} if name == "arrays" else {"num_bins": 4, "epsilon": 0.001}
        normal, binned = layers.Normalization(), layers.Discretization(**exact)
        lookup, text = layers.StringLookup(), layers.TextVectorization(max_tokens=10)
        weighed = layers.TextVectorization(max_tokens=10, output_mode="tf_idf")
        normal.adapt(given(s.flat))
        binned.adapt(given(numbers))
        lookup.adapt(given(words[:, None]))
        text.adapt(given(texts))
        weighed.adapt(given(texts))
        known = [*_WORDS, "seldom"]
        found |= {
            f"normal {name}": np.asarray(normal(s.flat[:9])),
            f"bins {name}": np.asarray(binned.bin_boundaries if name == "arrays" else binned(numbers[:50])),
            f"words {name}": np.array([known.index(word) for word in lookup.get_vocabulary()[1:]]),
            f"text {name}": np.array([known.index(word) for word in text.get_vocabulary()[2:]]),
            f"weights {name}": np.asarray(weighed(texts[:9])),
        }
    return found


@case
def feature_spaces(s: Setting) -> dict[str, Any]:
    """A FeatureSpace adapts to a dictionary of a worker's own arrays, and to a dataset of the run."""
    keras, tf = s.keras, s.tf
    space = keras.utils.FeatureSpace
    at = slice(None) if s.place.size == 1 else slice(*s.bounds(len(s.labels))[s.place.index :][:2])
    words = np.array(_WORDS)[s.labels]
    words[:10] = "seldom"  # only the first worker has this word
    rows = s.dealt(64, data=(s.flat[:, :2], np.arange(len(words), dtype=np.int32)))
    features = {"number": s.flat[:, 0], "word": words}
    own: Any = {key: array[at] for key, array in features.items()}
    if (
        s.framework == "tf_keras" or int(keras.__version__.split(".")[1]) < 15
    ):  # they do not accept a dictionary
        own = tf.data.Dataset.from_tensor_slices(own)
    kinds = {"number": space.float_normalized(), "word": space.string_categorical(num_oov_indices=1)}
    binned = {"binned": space.float_discretized(num_bins=10)}  # the bins depend on how rows form batches
    of_run = rows.map(
        lambda both, row: {"number": both[:, 0], "binned": both[:, 1], "word": tf.gather(words, row)}
    )
    found = {}
    for name, given, kinds_of in (("arrays", own, kinds), ("dataset", of_run, kinds | binned)):
        made = space(kinds_of, output_mode="concat")
        made.adapt(given)
        asked = features | {"binned": s.flat[:, 1]}
        found[name] = np.asarray(made({key: asked[key][:40] for key in kinds_of}))
    return found


@case
def a_rate_by_batch_logs(s: Setting) -> dict[str, Any]:
    keras = s.keras

    class ByLoss(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate.assign(
                0.01 * min(logs["loss"], 1.0) + 0.001 * logs["accuracy"]
            )

    model = s.dense()
    history = model.fit(s.dealt(flat=True), epochs=2, callbacks=[ByLoss()], verbose=0)
    return result(model, history)


@case
def rates_by_plateaus(s: Setting) -> dict[str, Any]:
    keras = s.keras
    model = s.dense(optimizer=keras.optimizers.SGD(0.5))
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, factor=0.5, min_delta=0.05),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
    ]
    data = s.dealt(flat=True)
    history = model.fit(data, epochs=4, validation_data=s.tests(flat=True), callbacks=callbacks, verbose=0)
    return result(model, history)


@case
def backed_up(s: Setting) -> dict[str, Any]:
    """A training is interrupted in its third epoch; another model continues it from Keras' own backup files."""
    import tempfile

    keras, folder = s.keras, tempfile.mkdtemp()

    class Interrupted(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError

    fits = {"epochs": 4, "verbose": 0}
    with contextlib.suppress(InterruptedError):
        callbacks = [keras.callbacks.BackupAndRestore(folder), Interrupted()]
        s.dense().fit(s.dealt(flat=True), callbacks=callbacks, **fits)
    again = s.dense()
    again.set_weights([np.zeros_like(each) for each in again.get_weights()])
    history = again.fit(s.dealt(flat=True), callbacks=[keras.callbacks.BackupAndRestore(folder)], **fits)
    assert history.epoch == [2, 3]
    return result(again, history)


@case
def ragged_rows(s: Setting) -> dict[str, Any]:
    """Sequences of different lengths, without padding."""
    keras, tf = s.keras, s.tf
    layers = keras.layers
    if "ragged" not in inspect.signature(keras.Input).parameters:
        return {}
    s.seeded()
    tokens = tf.RaggedTensor.from_tensor(s.tokens, padding=0)
    data = tf.data.Dataset.from_tensor_slices((tokens, s.labels)).batch(50)
    x = keras.Input([None], dtype="int32", ragged=True)
    embedded = layers.GlobalAveragePooling1D()(layers.Embedding(20, 8)(x))
    model = s.compiled(keras.Model(x, layers.Dense(10)(embedded)))
    return result(model, model.fit(data, epochs=2, verbose=0))


@case
def arrays_shuffled_by_a_seed(s: Setting) -> dict[str, Any]:
    """Each epoch and each `fit` has a different order, the same on all workers."""
    s.keras.utils.set_random_seed(3)
    model = s.dense()
    for _ in range(2):
        history = model.fit(s.flat, s.labels, batch_size=50, epochs=2, verbose=0)
    return result(model, history)


@case
def chosen_at_random(s: Setting) -> dict[str, Any]:
    """Without a seed, a script splits and shuffles identically on all workers, also later."""
    import random

    from ignite_tf_magic.training.seeding import seed_numpy, seed_random
    from ignite_tf_magic.training.tensorflow_seeds import seed_tensorflow

    for seed in (seed_random, seed_numpy, seed_tensorflow):  # as at the start of a process
        seed()
    tf = s.tf
    first = random.random()
    order = np.random.permutation(len(s.flat))
    data = tf.data.Dataset.from_tensor_slices((s.flat, s.labels)).shuffle(500).batch(60)
    layers = s.keras.layers
    model = s.compiled(s.keras.Sequential([s.keras.Input([64]), layers.Dense(10)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(data, epochs=1, verbose=0)
        model.fit(s.flat[order], s.labels[order], batch_size=100, shuffle=False, epochs=1, verbose=0)
    seen = [int(y) for _, labels in data.take(1) for y in labels]
    return {"chosen": np.array([first, *order[:20], *seen]), "after": tf.random.normal([3]).numpy()}
