"""Trains a classifier on a Spark cluster, and predicts with it there. The rows are TFRecord files."""

import argparse

from pyspark import SparkConf, SparkContext
from tensorflowonspark import TFCluster, TFParallel


def dataset(args):
    import tensorflow as tf

    names = {"pixels": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
    records = tf.data.TFRecordDataset(tf.io.gfile.glob(f"{args.data}/part-*"))
    rows = records.map(lambda record: tf.io.parse_single_example(record, names))
    return rows.map(lambda row: (tf.cast(row["pixels"], tf.float32) / 16, row["label"]))


def train(args, ctx):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
        model = tf.keras.Sequential(layers)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    checkpoint = tf.keras.callbacks.ModelCheckpoint(args.model)
    model.fit(dataset(args).shuffle(2000).batch(args.batch_size), epochs=args.epochs, callbacks=[checkpoint])


def predict(args, ctx):
    import tensorflow as tf

    tf.io.gfile.makedirs(args.output)
    model = tf.keras.models.load_model(args.model)
    rows = dataset(args).shard(ctx.num_workers, ctx.worker_num)
    with tf.io.gfile.GFile(f"{args.output}/part-{ctx.worker_num:05d}", "w") as output:
        for pixels, labels in rows.batch(args.batch_size):
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
    spark = SparkContext(conf=SparkConf().setAppName("digits"))
    cluster = TFCluster.run(
        spark, train, args, args.cluster_size, 0, input_mode=TFCluster.InputMode.TENSORFLOW
    )
    cluster.shutdown()
    TFParallel.run(spark, predict, args, args.cluster_size)
