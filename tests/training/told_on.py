"""Trainings with hidden pitfalls.

told_on.py FOLDER [NAME...] writes the warnings, error and result of all or some to FOLDER/told-WORKER.json.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np
import tensorflow as tf
import tf_keras

import ignite_tf_magic as itf
from ignite_tf_magic.training.group import worker_group

place = worker_group().place
x = np.random.default_rng(1).normal(size=(60, 16)).astype(np.float32)
y = np.zeros(60, np.float32)


def model(rate: float = 0.01):
    found = keras.Sequential(
        [keras.Input([16]), keras.layers.Dense(4, "relu", name="first"), keras.layers.Dense(1)]
    )
    found.compile(keras.optimizers.SGD(rate), "mse")
    return found


def independent():
    with itf.independent():
        model().train_on_batch(x, y)


def mirrored():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        one = model()
    trained_as_ever(one)


def mirrored_by_tf_keras():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        one = tf_keras.Sequential([tf_keras.Input([16]), tf_keras.layers.Dense(1)])
        one.compile("sgd", "mse")
    trained_as_ever(one)


def trained_as_ever(one):
    history = one.fit(x, y, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    one.evaluate(x, y, verbose=0)


def shuffled_differently():
    data = tf.data.Dataset.from_tensor_slices((x, np.arange(60.0))).shuffle(60, seed=place.index)
    model().fit(data.batch(10), epochs=2, verbose=0)


WORDS = (["a", "b"], ["b", "c", "d"])[place.index]


def adapted_to_own_rows_of_a_dataset():
    layer = keras.layers.StringLookup()
    layer.adapt(tf.data.Dataset.from_tensor_slices(WORDS * 4).batch(4))
    return layer.get_vocabulary()


def adapted_to_own_batches():
    layer = keras.layers.Discretization(num_bins=3, name="bins")
    layer.adapt(iter([x[place.index :: 2, :1]]))


def other_words_on_each():
    words = keras.Input([1], dtype="string")
    looked_up = keras.layers.StringLookup(vocabulary=WORDS + ["e"] * (place.index == 0), name="words")(words)
    one = keras.Model(words, keras.layers.Dense(1)(keras.layers.Embedding(5, 2)(looked_up)))
    one.compile("sgd", "mse")
    one.fit(tf.constant([["a"], ["b"]] * 10), np.zeros([20, 1, 1]), verbose=0)


def no_batch_on_one():
    model().fit((each for each in [(x, y)] * place.index), verbose=0)


class Endless(keras.utils.PyDataset):
    @property
    def num_batches(self):
        return 3 if place.index else None

    def __getitem__(self, at):
        return x, y


def batches_without_end_on_one():
    model().fit(Endless(), steps_per_epoch=3, verbose=0)


def other_epochs_on_each():
    model().fit(x, y, epochs=1 + place.index, verbose=0)


def other_class_weights_on_each():
    model().fit(x, y, class_weight={0: 1.0 + place.index, 1: 2.0}, verbose=0)


def a_dataset_without_end_on_one():
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    data = data.repeat() if place.index else data.repeat(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    one = model()
    one.fit(data.with_options(options), steps_per_epoch=20, verbose=0)
    return int(one.optimizer.iterations)


def own_rows(labels, *, are_generated=True):
    """Train on a dataset of this worker's own rows that does not declare this."""
    mine = x[place.index :: place.size], labels[: len(x[place.index :: place.size])]
    data = tf.data.Dataset.from_tensor_slices(mine)
    if are_generated:
        data = tf.data.Dataset.from_generator(
            lambda: zip(*mine, strict=True), output_signature=data.element_spec
        )
    model().fit(data.batch(10), epochs=2, verbose=0)


def own_rows_of_one_label():
    own_rows(np.zeros(60, np.int32))


def own_rows_sorted_by_labels():
    own_rows(np.arange(60) // 4)


def own_rows_of_labels_in_turns():
    own_rows(np.arange(60) % 3)


def own_rows_of_rare_labels():
    own_rows((np.arange(60) == 7).astype(np.int32))


def own_rows_of_like_labels():
    own_rows(np.random.default_rng(3).integers(0, 4, 60), are_generated=False)


def changed_at_random_with_few_labels():
    random = tf.random.Generator.from_seed(place.index)
    labels = np.random.default_rng(7).integers(0, 4, 60)
    data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(30)
    model().fit(data.map(lambda a, b: (a + random.normal(tf.shape(a)), b)), verbose=0)


def same_rows_of_one_label():
    data = tf.data.Dataset.from_tensor_slices(({"a": x}, y)).batch(10)
    inputs = keras.Input([16], name="a")
    one = keras.Model({"a": inputs}, keras.layers.Dense(1)(inputs))
    one.compile("sgd", "mse")
    one.fit(data, epochs=2, verbose=0)


def changed_at_random():
    random = tf.random.Generator.from_seed(place.index)
    data = tf.data.Dataset.from_tensor_slices((x, np.arange(60.0))).batch(10)
    model().fit(data.map(lambda a, b: (a + random.normal(tf.shape(a)), b)), verbose=0)


def rate_by_the_clock():
    class ByTheClock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.learning_rate.assign(0.01 + 0.001 * place.index)

    model().fit(x, y, batch_size=10, callbacks=[ByTheClock()], verbose=0)


def another_rate_on_each():
    model(rate=0.01 * (1 + place.index)).fit(x, y, verbose=0)


def another_size_on_each():
    one = keras.Sequential([keras.Input([16]), keras.layers.Dense(1 + place.index), keras.layers.Dense(1)])
    one.compile("sgd", "mse")
    one.fit(x, y, verbose=0)


def weights_without_an_optimizer():
    class Net(keras.Model):
        def train_step(self, data):
            a, b = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(a) - b[:, None]))
            for variable, gradient in zip(
                self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
            ):
                variable.assign_sub(0.01 * gradient)
            return {"loss": loss}

    inputs = keras.Input([16])
    net = Net(inputs, keras.layers.Dense(1, name="only")(inputs))
    net.compile()
    net.fit(x, y, batch_size=10, verbose=0)


def saved_under_one_name():
    """Save to the same file from all workers, and load it again."""
    one, loaded = model(), []
    for number in range(10):
        one.fit(x, y, verbose=0)
        save = keras.saving.save_model if number % 2 else keras.Model.save
        save(one, Path(sys.argv[1]) / f"model-{number}.keras")
        one.save_weights(str(Path(sys.argv[1]) / f"model-{number}.weights.h5"))
        again = keras.saving.load_model(Path(sys.argv[1]) / f"model-{number}.keras")
        again.load_weights(Path(sys.argv[1]) / f"model-{number}.weights.h5")
        loaded.append(all(map(np.array_equal, one.get_weights(), again.get_weights())))
    return loaded


def not_saved_here():
    """Load a file that only the first worker has. Returns the error's notes, and whether Python supports notes."""
    try:
        keras.saving.load_model("of-the-first-worker.keras")
    except ValueError as error:
        return getattr(error, "__notes__", []), hasattr(error, "add_note")


def several_values():
    """Train with a metric that has a value per class, also in a checkpoint."""
    one = keras.Sequential([keras.Input([16]), keras.layers.Dense(3, "sigmoid")])
    one.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.F1Score(average=None)])
    labels = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
    return np.shape(one.fit(x, labels, batch_size=10, epochs=2, verbose=0).history["f1_score"])


class Coder(keras.Model):
    """A model that declares neither its configuration nor its call."""

    def __init__(self, size):
        super().__init__(name="coder")
        self.coder = keras.Sequential([keras.Input([16]), keras.layers.Dense(size), keras.layers.Dense(16)])
        self.size = lambda: size

    def train_step(self, data):
        assert isinstance(data, tf.Tensor), "as where there is one process"
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.coder(data) - data))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def get_config(self):
        raise NotImplementedError("a Coder does not say how it is made")


def unsavable():
    coder = Coder(3)
    coder.compile("adam")
    coder.fit(x, batch_size=10, verbose=0)
    return float(np.sum(coder.coder.get_weights()[0]))


def rows_counted_in_a_variable():
    class Counted(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seen = self.add_weight(shape=(), dtype="int32", trainable=False, name="seen")

        def call(self, rows):
            self.seen.assign_add(tf.shape(rows)[0])
            return rows

    inputs = keras.Input([16])
    one = keras.Model(inputs, keras.layers.Dense(1)(Counted()(inputs)))
    one.compile("sgd", "mse")
    one.fit(x[:55], y[:55], batch_size=11, verbose=0)
    return int(one.layers[1].seen)


def random_numbers():
    """Compare an earlier-made operation with those in and after `independent` blocks."""
    tf.random.set_seed(4)
    made, one = tf.function(lambda: tf.random.uniform([])), None
    of_made, inside, behind = [float(made())], [], []
    for _ in range(2):
        with itf.independent():
            of_made.append(float(made()))
            inside.append(float(tf.random.uniform([])))
        one = one or model()
        one.fit(x, y, verbose=0)
        of_made.append(float(made()))
        behind.append(float(tf.random.uniform([])))
    tf.random.set_seed(4)
    again = tf.function(lambda: tf.random.uniform([]))
    return {
        "made": of_made,
        "one_process": [float(again()) for _ in of_made],
        "inside": inside,
        "behind": behind,
    }


told = {}
everything = (
    *(
        independent,
        mirrored,
        mirrored_by_tf_keras,
        shuffled_differently,
        changed_at_random,
        changed_at_random_with_few_labels,
        same_rows_of_one_label,
        adapted_to_own_rows_of_a_dataset,
        adapted_to_own_batches,
        other_words_on_each,
        a_dataset_without_end_on_one,
        own_rows_of_one_label,
        own_rows_sorted_by_labels,
        own_rows_of_labels_in_turns,
        own_rows_of_rare_labels,
        own_rows_of_like_labels,
        rate_by_the_clock,
    ),
    *(
        weights_without_an_optimizer,
        several_values,
        saved_under_one_name,
        not_saved_here,
        unsavable,
    ),
    *(another_rate_on_each, another_size_on_each, other_epochs_on_each, other_class_weights_on_each),
    *(no_batch_on_one, batches_without_end_on_one),
    *(rows_counted_in_a_variable, random_numbers),
)
for each in [one for one in everything if one.__name__ in sys.argv[2:] or not sys.argv[2:]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, error = each(), None
        except Exception as failure:  # noqa: BLE001 - the test checks it
            result, error = None, [type(failure).__name__, str(failure)]
    told[each.__name__] = {"warnings": [str(one.message) for one in caught], "error": error, "result": result}
path = Path(sys.argv[1]) / f"told-{place.index}.json"
path.write_text(json.dumps(told))
