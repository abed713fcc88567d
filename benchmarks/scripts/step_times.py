"""Measures steps of small models on all workers of a run, in several ways in turn, in milliseconds.

    step_times.py ROUNDS STEPS

Ways: `fit` is Keras' `fit` on all workers; `mirrored` is the same model of tf_keras under MultiWorkerMirroredStrategy;
`alone` is each worker's part without the others; `sum` only adds up as many numbers as the model has. Each worker keeps
to a core of its own.
"""

# ruff: noqa: E402 - TensorFlow makes as many threads as there are cores

import os
import statistics
import sys
import time

from ignite_tf_magic import independent, result, task

os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[task().index]})

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from ignite_tf_magic.training.group import worker_group

BATCH = 64  # of all workers
MODELS = {"64-128-10": [128], "24 layers of 64": [64] * 24, "3 layers of 1024": [1024] * 3}
WARM_UP = 20  # steps
num_rounds, num_steps = map(int, sys.argv[1:])
group, strategy = worker_group(), tf.distribute.MultiWorkerMirroredStrategy()


def net(framework, widths):
    layers = [framework.layers.Dense(width, activation="relu") for width in widths]
    inputs = framework.layers.Input([64])
    found = framework.Sequential([inputs, *layers, framework.layers.Dense(10)])
    loss = framework.losses.SparseCategoricalCrossentropy(from_logits=True)
    found.compile(framework.optimizers.SGD(0.01), loss, metrics=["accuracy"], jit_compile=False)
    return found


def rows_of_this_worker():
    rng = np.random.default_rng(task().index)
    num_rows = BATCH // task().num_workers * (WARM_UP + num_steps)
    x, y = rng.normal(size=(num_rows, 64)).astype(np.float32), rng.integers(0, 10, num_rows)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.threading.private_threadpool_size = 1
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH // task().num_workers)
    return batches.cache().prefetch(4).with_options(options)


def fitted(model, framework):
    times = []

    class Watch(framework.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            del batch, logs
            times.append(time.perf_counter())

    model.fit(data, verbose=0, callbacks=[Watch()])
    return 1000 * (times[-1] - times[WARM_UP]) / (len(times) - 1 - WARM_UP)


def summed(numbers):
    add_up = tf.function(lambda values: group.sum([values])[0])
    for number in range(WARM_UP + num_steps):
        if number == WARM_UP:
            began = time.perf_counter()
        add_up(numbers)
    return 1000 * (time.perf_counter() - began) / num_steps


def alone(model):
    with independent():
        return fitted(model, keras)


def measured(widths):
    together, by_itself = net(keras, widths), net(keras, widths)
    with strategy.scope():
        mirrored = net(tf_keras, widths)
    ways = {
        "fit": lambda: fitted(together, keras),
        "mirrored": lambda: fitted(mirrored, tf_keras),
        "alone": lambda: alone(by_itself),
        "sum": lambda: summed(tf.zeros([together.count_params()])),
    }
    took = {way: [] for way in ways}
    for _ in range(num_rounds + 1):
        for way, measure in ways.items():
            took[way].append(measure())
            group.any_true(False)  # all workers have finished this way
    return {way: times[1:] for way, times in took.items()}  # the first round traces


data, found = rows_of_this_worker(), {}
for name, widths in MODELS.items():
    found[name] = measured(widths)
    print(name, {way: round(statistics.median(times), 2) for way, times in found[name].items()}, flush=True)
result(found)
