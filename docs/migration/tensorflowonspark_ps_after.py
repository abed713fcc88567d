"""Trains with a parameter server on a Spark cluster, which feeds the rows; an evaluator looks at what is saved."""

import argparse
import time

import ignite_tf_magic as itf


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


def train(args):
    import tensorflow as tf

    fed = itf.IgniteDataset(args.data).map(lambda row: row["val"])
    rows = fed.map(lambda row: (tf.cast(row["pixels"], tf.float32), row["label"]))
    if itf.task().kind == "evaluator":
        evaluate(args, rows)
        return
    model = classifier()
    model.fit(rows.repeat().batch(args.batch_size), epochs=args.epochs, steps_per_epoch=args.steps, verbose=2)
    if itf.task().kind == "chief":
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
    itf.run(train, args.data, args.workers, args=(args,), num_ps=1, has_evaluator=True)
