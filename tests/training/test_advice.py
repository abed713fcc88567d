"""Warnings before a training on several workers."""

from __future__ import annotations

import warnings

import keras
import pytest

from ignite_tf_magic.training.advice import warn_of_own_statistics

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
