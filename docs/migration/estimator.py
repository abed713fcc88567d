"""The classifier of Ignite's and TensorFlow's articles of 2019: an Estimator, trained by all workers, kept in igfs."""

import os

import tensorflow as tf

import ignite_tf_magic
from ignite_tf_magic import IgniteDataset

ignite_tf_magic.register()  # igfs://
STEPS = 40


def input_fn():
    def example(row):
        return {"x": tf.cast(row["val"]["x"], tf.float32)}, row["val"]["label"]

    return IgniteDataset("POINTS").map(example).shuffle(500, seed=1).repeat().batch(32)


def model_fn(features, labels, mode):
    net = tf.keras.Sequential([tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(2)])
    logits = net(features["x"])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": accuracy}
    )


strategy = tf.distribute.MultiWorkerMirroredStrategy()
config = tf.estimator.RunConfig(train_distribute=strategy, save_checkpoints_steps=20)
classifier = tf.estimator.Estimator(model_fn, os.environ["IGNITE_TF_RUN_URI"] + "/estimator", config)
tf.estimator.train_and_evaluate(
    classifier,
    tf.estimator.TrainSpec(input_fn, max_steps=STEPS),
    tf.estimator.EvalSpec(input_fn, steps=10),
)
if strategy.cluster_resolver.task_id == 0:
    del os.environ["TF_CONFIG"]  # what follows is done by one worker
    found = tf.estimator.Estimator(model_fn, classifier.model_dir).evaluate(input_fn, steps=10)
    ignite_tf_magic.result({name: float(value) for name, value in found.items()})
