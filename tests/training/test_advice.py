"""Warnings and errors before a training."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.advice import check_elements, warn_of_own_statistics

layers = keras.layers


def model_with(*inner):
    return keras.Sequential([keras.Input((4,)), layers.Dense(3), *inner])


def test_batch_normalization_of_each_worker_alone_is_warned_of():
    inner = model_with(layers.BatchNormalization(name="inner"))
    frozen = layers.BatchNormalization(name="frozen")
    frozen.trainable = False
    outer = layers.BatchNormalization(name="outer")
    model = keras.Sequential([keras.Input((4,)), inner, outer, frozen])
    with pytest.warns(UserWarning, match="^inner, outer: BatchNormalization normalises each worker's rows"):
        warn_of_own_statistics(model)


def test_one_within_a_wrapper():
    wrapped = layers.TimeDistributed(layers.BatchNormalization(name="within"))
    with pytest.warns(UserWarning, match="within"):
        warn_of_own_statistics(keras.Sequential([keras.Input((5, 4)), wrapped]))


def test_synchronised_ones_are_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_own_statistics(model_with(layers.BatchNormalization(synchronized=True)))


def dataset_of(*shapes):
    tensors = tuple(np.zeros((10, *shape), np.float32) for shape in shapes)
    return tf.data.Dataset.from_tensor_slices(tensors if len(tensors) > 1 else tensors[0])


ROWS = tf.data.Dataset.from_tensor_slices({"key": np.arange(5), "val": {"x": np.zeros(5), "y": np.zeros(5)}})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (ROWS.batch(2), "the dataset gives rows of the cache.* fields: 'x', 'y'"),
        (dataset_of((), ()), r"gives single numbers, .* dataset.batch\(64\)"),
        (
            dataset_of((7,), ()).batch(2),
            r"takes inputs of shape \(None, 4\), and the dataset gives \(None, 7\)",
        ),
        (dataset_of((4, 2), ()).batch(2), r"gives \(None, 4, 2\)"),
    ],
)
def test_data_that_does_not_fit(data, words):
    with pytest.raises(ConfigError, match=words):
        check_elements(model_with(), data)


@pytest.mark.parametrize(
    "data",
    [
        dataset_of((4,), ()).batch(2),
        dataset_of((4, 1), ()).batch(2, drop_remainder=True),
        dataset_of((4,)).batch(2),
        dataset_of((4,), ()).batch(2).map(lambda x, y: ({"input": x}, y, y)),
        np.zeros((3, 9)),
    ],
)
def test_data_that_fits(data):
    check_elements(model_with(), data)


@pytest.mark.parametrize("model", [keras.Sequential([layers.Dense(2)]), keras.Model()])
def test_a_model_that_takes_anything(model):
    check_elements(model, dataset_of((7,), ()).batch(2))
