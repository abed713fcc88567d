"""Trains a classifier on rows of an Ignite cache."""

import tensorflow as tf
from tensorflow_io.ignite import IgniteDataset

EPOCHS = 5


def example(row):
    return tf.cast(row["val"]["pixels"], tf.float32) / 16, row["val"]["label"]


rows = IgniteDataset(cache_name="DIGITS", host="localhost", port=10800, page_size=100)
batches = rows.map(example).shuffle(2000).batch(64).prefetch(2)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(batches, epochs=EPOCHS)
loss, accuracy = model.evaluate(rows.map(example).batch(64))
print(f"accuracy {accuracy:.3f}")
