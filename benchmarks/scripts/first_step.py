"""The worker script of `first_step`: the quick start's training, up to its first step."""

# ruff: noqa: E402 - when TensorFlow is imported is what is measured

import json
import sys
import time

started_at = time.time()
import tensorflow as tf

imported_at = time.time()
import keras

from ignite_tf_magic import IgniteDataset

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input([784]), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.003)


def scale(row):
    return tf.cast(row["val"]["pixels"], tf.float32) / 255, row["val"]["label"]


train = IgniteDataset(sys.argv[1]).map(scale).shuffle(1000).batch(64)


@tf.function
def train_step(batch):
    def on_each_worker(pixels, labels):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, model(pixels), from_logits=True)
            loss = tf.reduce_mean(losses) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(on_each_worker, batch), axis=None)


for batch in strategy.distribute_datasets_from_function(lambda _: train):
    loss = float(train_step(batch))
    break
told = {
    "started_at": started_at,
    "import_s": imported_at - started_at,
    "first_step_at": time.time(),
    "loss": loss,
}
print("first step: " + json.dumps(told), flush=True)
