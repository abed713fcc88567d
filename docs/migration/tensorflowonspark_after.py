"""Trains a classifier on a Spark cluster, and predicts with it there. The rows are TFRecord files."""

import argparse

import ignite_tf_magic as itf


def dataset(args):
    import tensorflow as tf

    rows = itf.IgniteDataset(args.data).map(lambda row: row["val"])
    return rows.map(lambda row: (tf.cast(row["pixels"], tf.float32) / 16, row["label"]))


def train(args):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        layers = [
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
        model = tf.keras.Sequential(layers)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    checkpoint = tf.keras.callbacks.ModelCheckpoint(args.model)
    model.fit(dataset(args).shuffle(2000).batch(args.batch_size), epochs=args.epochs, callbacks=[checkpoint])


def predict(args):
    import tensorflow as tf

    tf.io.gfile.makedirs(args.output)
    model = tf.keras.models.load_model(args.model)
    with tf.io.gfile.GFile(f"{args.output}/part-{itf.task().index:05d}", "w") as output:
        for pixels, labels in dataset(args).batch(args.batch_size):
            for label, found in zip(labels.numpy(), model.predict_on_batch(pixels).argmax(axis=1)):
                output.write(f"{label} {found}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="hdfs:///digits")
    parser.add_argument("--model", default="hdfs:///models/digits.keras")
    parser.add_argument("--output", default="hdfs:///predictions")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cluster_size", type=int, default=2)
    args = parser.parse_args()
    itf.run(train, args.data, args.cluster_size, args=(args,))
    itf.run(predict, args.data, args.cluster_size, args=(args,))
