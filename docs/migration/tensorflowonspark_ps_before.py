"""Trains with a parameter server on a Spark cluster, which feeds the rows; an evaluator looks at what is saved."""

import argparse
import time

from pyspark import SparkConf, SparkContext
from tensorflowonspark import TFCluster


def classifier():
    import tensorflow as tf

    layers = [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10, activation="softmax")]
    model = tf.keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def evaluate(args, rows):
    import tensorflow as tf

    while not tf.io.gfile.exists(args.model):
        time.sleep(1)
    model = tf.keras.models.load_model(args.model)
    accuracy = model.evaluate(rows.batch(args.batch_size), verbose=0)[1]
    print(f"accuracy {accuracy:.3f}", flush=True)


def train(args, ctx):
    import tensorflow as tf

    def fed():
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            yield from feed.next_batch(1)

    spec = (tf.TensorSpec([64], tf.float32), tf.TensorSpec([], tf.int64))
    rows = tf.data.Dataset.from_generator(fed, output_signature=spec)
    if ctx.job_name == "evaluator":
        evaluate(args, rows)
        return
    with tf.distribute.experimental.ParameterServerStrategy().scope():
        model = classifier()
    model.fit(rows.batch(args.batch_size), epochs=args.epochs, steps_per_epoch=args.steps, verbose=2)
    if ctx.job_name == "chief":
        model.save(args.model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="hdfs:///digits")
    parser.add_argument("--model", default="hdfs:///models/digits.keras")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=56)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    spark = SparkContext(conf=SparkConf().setAppName("digits"))
    rows = spark.pickleFile(args.data)
    mode, num_executors = TFCluster.InputMode.SPARK, args.workers + 3
    cluster = TFCluster.run(
        spark, train, args, num_executors, num_ps=1, input_mode=mode, master_node="chief", eval_node=True
    )
    cluster.train(rows, args.epochs)
    cluster.shutdown(grace_secs=60)
