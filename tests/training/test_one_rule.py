"""The printed line about model parts that see only the rows of their worker; it is printed once per `fit`."""

from __future__ import annotations

import functools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.dataset.batches import part_of
from ignite_tf_magic.training.fit_data import explained
from ignite_tf_magic.training.frameworks import framework_named
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.one_rule import print_rule
from ignite_tf_magic.training.task import Place

layers = keras.layers
TWO = WorkerGroup(Place(addresses=("a:1", "b:1")))
ONE = WorkerGroup(Place())


def model_of(*between, kind=keras.Model, loss="mse", optimizer="sgd", **options):
    x = found = keras.Input([6])
    for layer in between:
        found = layer(found)
    model = kind(x, layers.Dense(1)(found))
    model.compile(optimizer, loss, **options)
    return model


class Stepping(keras.Model):
    def train_step(self, data):
        return {}


class Reduced(keras.Model):
    def compute_loss(self, *arguments, **options):
        return super().compute_loss(*arguments, **options)


class Called(keras.Model):
    def __init__(self, *_):
        super().__init__()
        self.inner = layers.Dense(1)

    def call(self, x):
        return self.inner(x)


class Centred(layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, 0)


class Clipping(keras.optimizers.SGD):
    pass


class Ranked(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.square(y_true - y_pred)


def masked_loss(y_true, y_pred):
    return tf.reduce_mean(y_pred)


def embedded(*rest):
    return [layers.Embedding(9, 4, mask_zero=True), *rest, layers.GlobalAveragePooling1D()]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: model_of(kind=Stepping), "`Stepping.train_step` runs on"),
        (lambda: model_of(Centred(), kind=Stepping), "`Stepping.train_step` and layer `Centred` run on"),
        (lambda: model_of(kind=Reduced), "`Reduced.compute_loss` runs on"),
        (lambda: model_of(kind=Called), "`Called.call` runs on"),
        (lambda: model_of(keras.Sequential([Centred(), Centred()])), "layer `Centred` runs on"),
        (lambda: model_of(layers.Lambda(lambda x: x, name="own")), "layer `Lambda` runs on"),
        (lambda: model_of(optimizer=Clipping()), "optimizer `Clipping` runs on"),
        (lambda: model_of(loss=masked_loss), "loss `masked_loss` runs on"),
        (lambda: model_of(loss=Ranked()), "loss `Ranked` runs on"),
        (lambda: model_of(loss=functools.partial(masked_loss)), "loss `partial` runs on"),
        (lambda: model_of(layers.BatchNormalization(name="normal")), "layer `normal` runs on"),
        (
            lambda: model_of(keras.Sequential([layers.BatchNormalization(name="inner")])),
            "layer `inner` runs on",
        ),
        (
            lambda: model_of(*embedded(layers.BatchNormalization(synchronized=True, name="of_masked"))),
            "layer `of_masked` runs on",
        ),
        (
            lambda: model_of(*(layers.BatchNormalization(name=f"n{at}") for at in range(6))),
            "layer `n0`, layer `n1`, layer `n2`, layer `n3` and 2 more run on",
        ),
    ],
)
def test_a_line_names_what_is_not_keras_own(make, names, capsys):
    print_rule(make(), framework_named("keras"))
    line = capsys.readouterr().out
    end = "each worker's rows; gradients and logs are averaged by rows (docs/training.md#one-rule)\n"
    assert line == f"ignite_tf_magic: {names} {end}"


def frozen():
    layer = layers.BatchNormalization()
    layer.trainable = False
    return layer


@pytest.mark.parametrize(
    "make",
    [
        model_of,
        lambda: model_of(layers.BatchNormalization(synchronized=True), layers.Dropout(0.5), frozen()),
        lambda: model_of(layers.Dense(3, activation=tf.nn.gelu), loss=keras.losses.Huber(), metrics=["mae"]),
        lambda: model_of(
            loss=keras.losses.mean_absolute_error, optimizer=keras.optimizers.Adam(clipnorm=1.0)
        ),
    ],
)
def test_models_of_keras_own_parts_get_no_line(make, capsys):
    print_rule(make(), framework_named("keras"))
    assert capsys.readouterr().out == ""


ROWS = tf.data.Dataset.from_tensor_slices({"key": [1, 2], "val": {"x": [1.0, 2.0], "y": [0, 1]}})
PAIRS = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [0.0, 1.0]))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (ROWS.batch(2), ValueError("a layer"), "The dataset gives rows of the cache.* fields: 'x', 'y'"),
        (
            PAIRS.map(lambda x, y: (y, y)),
            ValueError("a layer"),
            r"gives single numbers, .* dataset.batch\(64\)",
        ),
        (PAIRS.batch(2), TypeError("unsupported: 'Tensor' and 'NoneType'"), "drop_remainder=True"),
    ],
)
def test_an_error_of_keras_has_what_may_have_caused_it(data, error, words):
    with pytest.raises(type(error)) as caught, explained(data, TWO):
        raise error
    notes = getattr(caught.value, "__notes__", [])
    assert not hasattr(error, "add_note") or any(re.search(words, each) for each in notes)


@pytest.mark.parametrize("data", [PAIRS.batch(2), None, [[1.0]]])
def test_an_error_that_has_nothing_to_do_with_the_data_stays_as_it_is(data):
    with pytest.raises(ValueError) as caught, explained(data, TWO):
        raise ValueError("the script's own")
    assert not getattr(caught.value, "__notes__", [])


def test_nothing_is_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        print_rule(model_of(layers.BatchNormalization()), framework_named("keras"))


def test_a_step_with_a_batch_size_of_its_own_is_explained():
    error = ValueError("Dimensions must be equal, but are 20 and 10 for '{{node mul}}'")
    with pytest.raises(ValueError) as caught, explained(np.zeros((4, 2)), TWO):
        raise error
    notes = getattr(caught.value, "__notes__", [])  # only from Python 3.11
    assert (
        not hasattr(error, "add_note") or "take the number of rows from the data: tf.shape(x)[0]" in notes[0]
    )
    with pytest.raises(ValueError) as caught, explained(np.zeros((4, 2)), ONE):
        raise ValueError(str(error))
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("are_known", [True, False])
def test_a_batch_whose_parts_have_different_numbers_of_rows_is_not_divided(are_known):
    """For example a batch of merged graphs: every n-th row of each part would not match."""
    parts = [tf.zeros([8, 3]), tf.zeros([8], tf.int32), tf.zeros([2])]
    data = tf.data.Dataset.from_tensors(tuple(parts))
    if not are_known:
        data = data.map(lambda *each: tuple(map(of_unknown_rows, each)))
    errors, words = (
        (ValueError, tf.errors.InvalidArgumentError),
        "different numbers of rows.*merge rows in the model",
    )
    with pytest.raises(errors, match=words):
        list(data.map(lambda *each: part_of(each, 0, 2)))


def of_unknown_rows(tensor: tf.Tensor) -> tf.Tensor:
    every = tf.ones(tf.shape(tensor)[:1], tf.bool)
    return tf.ensure_shape(tf.boolean_mask(tensor, every), [None, *tensor.shape[1:]])


def test_a_batch_is_divided_whatever_kinds_of_parts_it_has():
    ragged = tf.ragged.constant([[1], [2, 2], [3], []])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0], [0, 3], [4, 4]])
    data = tf.data.Dataset.from_tensors((ragged, sparse, tf.range(4), tf.constant(7))).map(
        lambda r, s, d, n: (r, s, of_unknown_rows(d), n)
    )
    ((ragged, sparse, dense, number),) = list(data.map(lambda *each: part_of(each, 1, 2)))
    assert (ragged.to_list(), dense.numpy().tolist(), int(number)) == ([[2, 2], []], [1, 3], 7)
    assert tf.sparse.to_dense(sparse).numpy().tolist() == [[2, 0], [4, 4]]
