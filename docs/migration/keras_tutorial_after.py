"""Trains a convolutional net on several workers."""

import tensorflow as tf
import ignite_tf_magic as itf

per_worker_batch_size = 64
num_workers = itf.task().num_workers


def mnist_dataset(batch_size):
    rows = itf.IgniteDataset("MNIST")
    dataset = rows.map(lambda row: (tf.cast(row["val"]["pixels"], tf.float32) / 255, row["val"]["label"]))
    return dataset.shuffle(60000).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Reshape((28, 28, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
    return model


strategy = tf.distribute.get_strategy()
multi_worker_dataset = mnist_dataset(per_worker_batch_size * num_workers)
with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()
multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=70)
