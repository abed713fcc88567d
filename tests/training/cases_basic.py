"""Features of Keras that most scripts use."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.training.case_setting import Setting, case, result


@case
def dense(s: Setting) -> dict[str, Any]:
    model = s.dense()
    history = model.fit(s.dealt(flat=True), epochs=3, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def convolutional(s: Setting) -> dict[str, Any]:
    model = s.conv()
    history = model.fit(s.dealt(), epochs=3, validation_data=s.tests(), verbose=0)
    return result(model, history)


@case
def synchronised_batch_normalization(s: Setting) -> dict[str, Any]:
    model = s.conv(s.keras.layers.BatchNormalization(synchronized=True))
    history = model.fit(s.dealt(), epochs=3, validation_data=s.tests(), verbose=0)
    return result(model, history)


@case
def large_layer(s: Setting) -> dict[str, Any]:
    """Has a gradient of more than 1 MiB, which is reduced separately, beside small ones."""
    layers = s.keras.layers
    sgd = s.keras.optimizers.SGD(0.01)  # Adam would magnify rounding differences
    model = s.conv(layers.Flatten(), layers.Dense(1024, "relu"), optimizer=sgd)
    return result(model, model.fit(s.dealt(), epochs=2, verbose=0))


@case
def gradient_of_unknown_shape(s: Setting) -> dict[str, Any]:
    """Only in the chief's trace, the shape of a gradient of more than 1 MiB is unknown."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - tf.cast(y, tf.float32)[:, None]))
            gradients = tape.gradient(loss, self.trainable_variables)
            if s.place.index == 0:
                gradients = [tf.numpy_function(lambda each: each, [each], tf.float32) for each in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x = keras.Input([64])
    wide = keras.layers.Dense(4200, "relu")(x)
    model = s.compiled(
        Net(x, keras.layers.Dense(1)(wide)), keras.optimizers.SGD(1e-4), metrics=(), jit_compile=False
    )
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def last_batch_dropped(s: Setting) -> dict[str, Any]:
    model = s.dense()
    return result(model, model.fit(s.dealt(flat=True, equal_steps="drop"), epochs=2, verbose=0))


@case
def last_batch_filled_up(s: Setting) -> dict[str, Any]:
    model = s.dense()
    return result(model, model.fit(s.dealt(flat=True, equal_steps="repeat"), epochs=2, verbose=0))


@case
def whole_dataset(s: Setting) -> dict[str, Any]:
    model = s.conv()
    return result(model, model.fit(s.whole(), epochs=2, verbose=0))


@case
def arrays(s: Setting) -> dict[str, Any]:
    model = s.conv()
    history = model.fit(
        s.images, s.labels, batch_size=50, epochs=2, shuffle=False, validation_split=0.2, verbose=0
    )
    return result(model, history)


@case
def sample_weight(s: Setting) -> dict[str, Any]:
    model = s.conv(weighted_metrics=["accuracy"])
    data = s.dealt(more=lambda x, y: (x, y, s.tf.cast(y + 1, s.tf.float32) / 5))
    return result(model, model.fit(data, epochs=2, verbose=0))


@case
def class_weight(s: Setting) -> dict[str, Any]:
    model = s.conv()
    weights = {label: 0.5 + label / 10 for label in range(10)}
    return result(model, model.fit(s.dealt(), epochs=2, class_weight=weights, verbose=0))


@case
def steps_per_epoch(s: Setting) -> dict[str, Any]:
    model = s.conv()
    return result(model, model.fit(s.dealt().repeat(), epochs=3, steps_per_epoch=5, verbose=0))


@case
def steps_per_execution(s: Setting) -> dict[str, Any]:
    model = s.conv(steps_per_execution=3)
    return result(model, model.fit(s.dealt(), epochs=2, validation_data=s.tests(), verbose=0))


@case
def run_eagerly(s: Setting) -> dict[str, Any]:
    model = s.conv(run_eagerly=True)
    return result(model, model.fit(s.dealt(), epochs=1, verbose=0))


@case
def clipping(s: Setting) -> dict[str, Any]:
    model = s.conv(optimizer=s.keras.optimizers.Adam(0.003, global_clipnorm=0.1))
    return result(model, model.fit(s.dealt(), epochs=2, verbose=0))


@case
def regularized(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras = s.keras
    layer = keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(0.01))
    model = s.compiled(keras.Sequential([keras.Input([64]), layer]))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def functional(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras = s.keras
    x = keras.Input([64])
    first = keras.layers.Dense(16, "relu")(x)
    second = keras.layers.Dense(16, "tanh")(x)
    model = s.compiled(keras.Model(x, keras.layers.Dense(10)(keras.layers.Concatenate()([first, second]))))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def subclassed(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras = s.keras

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(16, "relu")
            self.last = keras.layers.Dense(10)

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

    model = s.compiled(Net())
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def unbuilt_sequential(s: Setting) -> dict[str, Any]:
    s.seeded()
    model = s.compiled(s.keras.Sequential([s.keras.layers.Dense(16, "relu"), s.keras.layers.Dense(10)]))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def own_train_step(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                losses = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own_loss": loss, "largest": tf.reduce_mean(tf.reduce_max(predicted, axis=1))}

    x = keras.Input([64])
    model = s.compiled(Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x))), metrics=())
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def early_stopping(s: Setting) -> dict[str, Any]:
    keras = s.keras
    model = s.dense(optimizer=keras.optimizers.Adam(0.05))
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1),
    ]
    data = s.dealt(flat=True)
    history = model.fit(data, epochs=30, validation_data=s.tests(flat=True), callbacks=callbacks, verbose=0)
    return result(model, history)


@case
def evaluate(s: Setting) -> dict[str, Any]:
    model = s.conv()
    model.fit(s.dealt(), epochs=1, verbose=0)
    found = model.evaluate(s.dealt(), return_dict=True, verbose=0)
    whole = model.evaluate(*s.test, batch_size=40, return_dict=True, verbose=0)
    return result(
        model, loss=found["loss"], accuracy=found["accuracy"], whole=[whole["loss"], whole["accuracy"]]
    )


@case
def predict(s: Setting) -> dict[str, Any]:
    model = s.conv()
    model.fit(s.dealt(), epochs=1, verbose=0)
    return result(model, predicted=model.predict(s.test[0], verbose=0))


@case
def unknown_cardinality(s: Setting) -> dict[str, Any]:
    """A filter makes the number of batches unknown, and the order of rows differs from that in one process."""
    model = s.dense(optimizer=s.keras.optimizers.SGD(0.1))
    data = s.dealt(500, flat=True).unbatch().filter(lambda x, y: y != 3).batch(500)
    found = result(model, model.fit(data, epochs=3, verbose=0))
    # In one process, Keras 3.15 counts an extra step per epoch if the cardinality is unknown, which Adam would use.
    other = s.dense(optimizer=s.keras.optimizers.SGD(0.1))
    all_batches = s.dealt(flat=True).filter(lambda x, y: True)
    history = other.fit(
        all_batches, epochs=4, validation_data=s.tests(flat=True).filter(lambda x, y: True), verbose=0
    )
    return found | {f"other {name}": value for name, value in result(other, history).items()}


@case
def a_stop_that_one_worker_wants(s: Setting) -> dict[str, Any]:
    keras, place = s.keras, s.place

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if place.index == place.size - 1 and batch == 2:
                self.model.stop_training = True

    model = s.dense()
    history = model.fit(s.dealt(flat=True), epochs=3, callbacks=[Stop()], verbose=0)
    return {"epochs": np.array(len(history.epoch))}


@case
def callbacks_of_the_chief(s: Setting) -> dict[str, Any]:
    """Callbacks write in the first worker only, with the logs of all workers."""
    keras = s.keras
    folder = Path(tempfile.mkdtemp())
    checkpoint = "checkpoint.weights.h5" if s.framework == "keras" else "checkpoint"
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(folder / checkpoint), save_weights_only=True),
        keras.callbacks.TensorBoard(str(folder / "events")),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
    ]
    model = s.dense()
    history = model.fit(
        s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), callbacks=callbacks, verbose=0
    )
    written = {path.name.partition(".")[0] for path in folder.iterdir()}
    assert written == ({"checkpoint", "events", "log"} if s.place.is_chief else set()), written
    if s.place.is_chief:
        lines = (folder / "log.csv").read_text().splitlines()
        losses = [
            float(dict(zip(lines[0].split(","), line.split(","), strict=True))["loss"]) for line in lines[1:]
        ]
        np.testing.assert_allclose(losses, history.history["loss"], rtol=1e-6)
        other = s.dense()
        other.load_weights(str(folder / checkpoint))
        np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    return result(model, history)


@case
def a_loop_of_ones_own(s: Setting) -> dict[str, Any]:
    import ignite_tf_magic as itf

    keras, tf = s.keras, s.tf
    strategy = itf.strategy()
    with strategy.scope():
        s.seeded()
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam(0.003)
        optimizer.build(model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def train_step(x: Any, y: Any, total: Any) -> Any:
        def on_each(x: Any, y: Any, total: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(
                    y, model(x, training=True), from_logits=True
                )
                loss = tf.reduce_sum(losses) / total
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(on_each, args=(x, y, total)), axis=None)

    losses = []
    for _ in range(2):
        for step, (x, y) in enumerate(s.dealt(flat=True)):
            total = min(64, len(s.labels) - 64 * step)
            losses.append(train_step(x, y, tf.constant(total, tf.float32)).numpy())
    return result(model, losses=losses)
