"""Runs every TensorFlow and Keras feature that uses files on igfs, in a process of its own.

Started as `python tensorflow_checks.py ROOT_URI`; prints one JSON line for each check: name, error, message.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import ignite_tf_magic

ROOT = sys.argv[1]
CHECKS: dict[str, Callable[[], None]] = {}
gfile = tf.io.gfile
rng = np.random.default_rng(7)
X, Y = rng.random((64, 4), np.float32), rng.random((64, 3), np.float32)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def compiled_model() -> keras.Model:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    return model


def raises(error: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(f"{error.__name__} was expected")


@check
def gfile_files() -> None:
    path = f"{ROOT}/files/x"
    gfile.makedirs(f"{ROOT}/files")
    with gfile.GFile(path, "w") as file:
        file.write("hello\nworld\n")
    with gfile.GFile(path, "a") as file:
        file.write("more\n")
    with gfile.GFile(path) as file:
        assert file.readlines() == ["hello\n", "world\n", "more\n"]
    with gfile.GFile(path, "rb") as file:
        file.seek(6)
        assert (file.read(5), file.tell(), file.size()) == (b"world", 11, 17)
    gfile.copy(path, f"{ROOT}/files/y")
    gfile.rename(f"{ROOT}/files/y", f"{ROOT}/files/z")
    assert gfile.stat(f"{ROOT}/files/z").length == 17
    raises(tf.errors.AlreadyExistsError, lambda: gfile.rename(path, f"{ROOT}/files/z"))
    gfile.rename(path, f"{ROOT}/files/z", overwrite=True)
    assert gfile.listdir(f"{ROOT}/files") == ["z"]
    gfile.remove(f"{ROOT}/files/z")
    message = raises(tf.errors.NotFoundError, lambda: gfile.GFile(path).read())
    assert "there is no such file or directory in igfs" in message, message


@check
def gfile_directories() -> None:
    base = f"{ROOT}/directories"
    assert not gfile.exists(base)
    gfile.makedirs(f"{base}/a/b")
    gfile.makedirs(f"{base}/a/b")
    tf.io.write_file(f"{base}/a/b/file", "content")
    assert gfile.isdir(f"{base}/a") and not gfile.isdir(f"{base}/a/b/file")
    assert gfile.glob(f"{base}/*/b/f*") == [f"{base}/a/b/file"]
    gfile.rename(f"{base}/a", f"{base}/moved")
    assert [names for _, _, names in gfile.walk(base)] == [[], [], ["file"]]
    raises(tf.errors.FailedPreconditionError, lambda: gfile.GFile(f"{base}/moved", "rb").read())
    raises(tf.errors.OpError, lambda: gfile.remove(f"{base}/moved"))
    gfile.rmtree(base)
    assert not gfile.exists(base)


@check
def below_a_file() -> None:
    """Paths below a file fail as on a local disk, where rmtree also removes a file."""
    file = f"{ROOT}/file"
    tf.io.write_file(file, "x")
    assert not gfile.exists(f"{file}/x") and not gfile.isdir(f"{file}/x") and not gfile.glob(f"{file}/*")
    assert not tf.saved_model.contains_saved_model(file)
    assert tf.train.latest_checkpoint(file) is None
    raises(tf.errors.FailedPreconditionError, lambda: gfile.stat(f"{file}/x"))
    raises(tf.errors.FailedPreconditionError, lambda: tf.io.write_file(f"{file}/x", "y"))
    gfile.rmtree(file)
    assert not gfile.exists(file)
    raises(tf.errors.NotFoundError, lambda: gfile.rmtree(file))


@check
def two_dots() -> None:
    """TensorBoard's projector names a checkpoint above its directory."""
    logs = f"{ROOT}/projector/logs"
    gfile.makedirs(logs)
    path = tf.train.Checkpoint(rows=tf.Variable([1.0, 2.0])).write(f"{logs}/../rows.ckpt")
    assert gfile.exists(f"{ROOT}/projector/rows.ckpt.index")
    assert f"{path}.index" in gfile.glob(f"{logs}/../rows.ckpt*")
    name = "rows/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.load_checkpoint(path).get_tensor(name).tolist() == [1, 2]


@check
def read_by_other_libraries() -> None:
    gfile.makedirs(ROOT)
    tf.io.write_file(f"{ROOT}/a.png", tf.io.encode_png(tf.zeros([1, 1, 3], tf.uint8)))
    message = raises(OSError, lambda: keras.utils.load_img(f"{ROOT}/a.png"))
    assert "reads from the local disk" in message and "writ" not in message, message


@check
def hostile_names() -> None:
    gfile.makedirs(f"{ROOT}/names")
    names = ["a b", "ü€😀", "h#a?s%20h&=", "n" * 1000, "-rf", "'\"\\"]
    for name in names:
        tf.io.write_file(f"{ROOT}/names/{name}", name)
    assert sorted(gfile.listdir(f"{ROOT}/names")) == sorted(names)
    for name in names:
        assert tf.io.read_file(f"{ROOT}/names/{name}").numpy().decode() == name
    raises(tf.errors.NotFoundError, lambda: tf.io.gfile.mkdir(f"{ROOT}/missing/parent"))


@check
def ops() -> None:
    tf.io.write_file(f"{ROOT}/ops/a.txt", "abc")
    assert tf.io.read_file(f"{ROOT}/ops/a.txt") == b"abc"
    assert tf.io.matching_files(f"{ROOT}/ops/*.txt").numpy().tolist() == [f"{ROOT}/ops/a.txt".encode()]


@check
def checkpoint_manager() -> None:
    variable = tf.Variable(rng.random((300, 1000)))
    checkpoint = tf.train.Checkpoint(variable=variable)
    manager = tf.train.CheckpointManager(checkpoint, f"{ROOT}/checkpoints", max_to_keep=2)
    for _ in range(4):
        variable.assign_add(variable)
        manager.save()
    saved = variable.numpy()
    variable.assign(variable * 0)
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert (variable.numpy() == saved).all()
    assert len(manager.checkpoints) == 2
    assert tf.train.latest_checkpoint(f"{ROOT}/checkpoints") == manager.latest_checkpoint
    reader = tf.train.load_checkpoint(manager.latest_checkpoint)
    assert (reader.get_tensor("variable/.ATTRIBUTES/VARIABLE_VALUE") == saved).all()


@check
def keras_file() -> None:
    model = compiled_model()
    model.save(f"{ROOT}/m.keras")
    again = keras.models.load_model(f"{ROOT}/m.keras")
    assert (again.predict(X, verbose=0) == model.predict(X, verbose=0)).all()


@check
def weights_h5() -> None:
    model, other = compiled_model(), compiled_model()
    model.save_weights(f"{ROOT}/m.weights.h5")
    other.load_weights(f"{ROOT}/m.weights.h5")
    assert (other.predict(X, verbose=0) == model.predict(X, verbose=0)).all()


@check
def saved_model() -> None:
    model = compiled_model()
    model.export(f"{ROOT}/saved_model", verbose=False)
    loaded = tf.saved_model.load(f"{ROOT}/saved_model")
    served = loaded.serve(X)
    assert np.allclose(served, model.predict(X, verbose=0), atol=1e-6)


@check
def model_checkpoint() -> None:
    gfile.makedirs(f"{ROOT}/epochs")
    callback = keras.callbacks.ModelCheckpoint(f"{ROOT}/epochs/{{epoch}}.keras")
    compiled_model().fit(X, Y, epochs=2, verbose=0, callbacks=[callback])
    assert gfile.listdir(f"{ROOT}/epochs") == ["1.keras", "2.keras"]


@check
def backup_and_restore() -> None:
    class Interrupted(Exception):
        pass

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            if epoch == 1:
                raise Interrupted

    model = compiled_model()
    backup = keras.callbacks.BackupAndRestore(f"{ROOT}/backup")
    raises(Interrupted, lambda: model.fit(X, Y, epochs=4, verbose=0, callbacks=[backup, Interrupt()]))
    again = keras.callbacks.BackupAndRestore(f"{ROOT}/backup")
    history = compiled_model().fit(X, Y, epochs=4, verbose=0, callbacks=[again])
    assert len(history.epoch) in (2, 3), history.epoch


@check
def tensorboard_callback() -> None:
    callback = keras.callbacks.TensorBoard(f"{ROOT}/tensorboard")
    compiled_model().fit(X, Y, epochs=2, verbose=0, callbacks=[callback])
    (events,) = gfile.glob(f"{ROOT}/tensorboard/train/*")
    assert gfile.stat(events).length > 100


@check
def summary_writer() -> None:
    writer = tf.summary.create_file_writer(f"{ROOT}/events")
    with writer.as_default():
        for step in range(5):
            tf.summary.write("loss", step / 5, step=step)
            writer.flush()
            (events,) = gfile.glob(f"{ROOT}/events/*")
            assert sum(1 for _ in tf.data.TFRecordDataset(events)) == step + 2
    writer.close()


@check
def tfrecord() -> None:
    with tf.io.TFRecordWriter(f"{ROOT}/r.tfrecord") as writer:
        for size in range(1000):
            writer.write(b"x" * size)
    lengths = [len(record.numpy()) for record in tf.data.TFRecordDataset(f"{ROOT}/r.tfrecord")]
    assert lengths == list(range(1000))


@check
def fixed_length_and_text_lines() -> None:
    with gfile.GFile(f"{ROOT}/fixed", "wb") as file:
        file.write(bytes(range(200)))
    records = list(tf.data.FixedLengthRecordDataset(f"{ROOT}/fixed", 10).as_numpy_iterator())
    assert b"".join(records) == bytes(range(200))
    with gfile.GFile(f"{ROOT}/lines", "w") as file:
        file.write("a\nb\n")
    assert list(tf.data.TextLineDataset(f"{ROOT}/lines").as_numpy_iterator()) == [b"a", b"b"]


@check
def dataset_save_and_cache() -> None:
    dataset = tf.data.Dataset.range(100)
    dataset.save(f"{ROOT}/dataset")
    assert list(tf.data.Dataset.load(f"{ROOT}/dataset").as_numpy_iterator()) == list(range(100))
    cached = dataset.cache(f"{ROOT}/cache")
    assert list(cached.as_numpy_iterator()) == list(cached.as_numpy_iterator())
    assert gfile.glob(f"{ROOT}/cache*")


@check
def csv_logger() -> None:
    callback = keras.callbacks.CSVLogger(f"{ROOT}/log.csv")
    compiled_model().fit(X, Y, epochs=3, verbose=0, callbacks=[callback])
    assert len(gfile.GFile(f"{ROOT}/log.csv").read().splitlines()) == 4


@check
def legacy_h5() -> None:
    message = raises(OSError, lambda: compiled_model().save(f"{ROOT}/m.h5"))
    assert "writes to the local disk" in message, message
    assert not gfile.exists(f"{ROOT}/m.h5")


@check
def nothing_beside_igfs() -> None:
    assert not list(Path.cwd().iterdir())


def main() -> None:
    ignite_tf_magic.register()
    ignite_tf_magic.register()
    gfile.makedirs(ROOT)
    for name, function in CHECKS.items():
        try:
            function()
            error = ""
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is the outcome
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps({"name": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
