"""Trains a small convolutional net in several ways in turn; the result is seconds.

    train_cnn.py [--turns DIR] ROUNDS EPOCHS WAY...

Ways: `ignite` reads the run's cache; `tfrecord` reads the same rows from a file of this worker, which it writes first;
both train on all workers. `plain` is Keras alone in this process on the file, without this package. With a directory,
each round waits for a file with its number, and writes its time beside it.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import keras
import tensorflow as tf

import ignite_tf_magic

BATCH = 256


def features(row):
    return tf.reshape(tf.cast(row["val"]["pixels"], tf.float32) / 255, [28, 28, 1]), row["val"]["label"]


def write_file(path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            feature = {
                "pixels": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[bytes(row["val"]["pixels"].numpy())])
                ),
                "label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[int(row["val"]["label"]) % 10])
                ),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def from_file(path):
    spec = {"pixels": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(batch):
        found = tf.io.parse_example(batch, spec)
        pixels = tf.reshape(tf.io.decode_raw(found["pixels"], tf.uint8), [-1, 28, 28, 1])
        return tf.cast(pixels, tf.float32) / 255, tf.cast(found["label"], tf.int32)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.autotune.enabled = False  # else epoch times vary randomly by up to three times
    records = tf.data.TFRecordDataset(str(path)).shuffle(2000).batch(BATCH // num_workers)
    return records.map(parsed, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE).with_options(options)


def net():
    layers = keras.layers
    found = keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            *(layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()),
            *(layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()),
            *(layers.Flatten(), layers.Dense(10)),
        ]
    )
    found.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return found


def train(way, epochs):
    began, began_cpu = time.perf_counter(), time.process_time()
    if way == "plain":
        with ignite_tf_magic.independent():
            models[way].fit(data[way], epochs=epochs, verbose=0)
    else:
        models[way].fit(data[way], epochs=epochs, verbose=0)
    return time.perf_counter() - began, time.process_time() - began_cpu


def wait_for(turn):
    while not turn.exists():
        time.sleep(0.02)


def tell(path, took):
    part = path.with_suffix(".part")
    part.write_text(json.dumps({way: {"seconds": each[0], "cpu_s": each[1]} for way, each in took.items()}))
    part.rename(path)


parser = argparse.ArgumentParser()
parser.add_argument("--turns", type=Path)
parser.add_argument("rounds", type=int)
parser.add_argument("epochs", type=int)
parser.add_argument("ways", nargs="+")
asked = parser.parse_args()
rows = ignite_tf_magic.IgniteDataset(os.environ["IGNITE_DATASET_ASSIGNED_CACHE"])
config = json.loads(os.environ.get("TF_CONFIG") or "{}")
num_workers = len(config["cluster"]["worker"]) if config else 1
is_chief = not config or config["task"]["index"] == 0
with tempfile.TemporaryDirectory() as folder:
    write_file(Path(folder) / "rows")
    in_file = from_file(Path(folder) / "rows")
    images = rows.map(lambda row: (features(row)[0], row["val"]["label"] % 10))
    data = {
        "ignite": images.shuffle(2000).batch(BATCH).prefetch(tf.data.AUTOTUNE),
        "tfrecord": in_file,
        "plain": in_file,
    }
    models = {way: net() for way in asked.ways}
    for way in asked.ways:
        train(way, 1)  # compiles
    found = {way: [] for way in asked.ways}
    for number in range(asked.rounds):
        if asked.turns:
            wait_for(asked.turns / str(number))
        took = {way: train(way, asked.epochs) for way in asked.ways}
        if asked.turns and is_chief:
            tell(asked.turns / f"{number}.took", took)
        for way, (seconds, _) in took.items():
            found[way].append(seconds)
    ignite_tf_magic.result(found)
