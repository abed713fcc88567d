"""Layers and steps that use rows in ways that Keras' own parts in `fit` do not."""

from __future__ import annotations

from typing import Any

from tests.training.case_setting import Setting, case, result


@case
def gradients_of_inputs(s: Setting) -> dict[str, Any]:
    """The loss penalizes the gradient of the outputs by their inputs, a gradient that no optimizer applies."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    predicted = self(x, training=True)
                slopes = inner.gradient(predicted, x)
                loss = tf.reduce_mean(
                    keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
                )
                loss += tf.reduce_mean(tf.reduce_sum(tf.square(slopes), axis=1))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "tanh")(x)))
    model.compile(keras.optimizers.SGD(0.01))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def lookups_of_positions(s: Setting) -> dict[str, Any]:
    """Position embeddings have one lookup for all rows, so each worker adds one. Adam would square each separately."""
    s.seeded()
    keras, tf = s.keras, s.tf
    layers = keras.layers

    class Positions(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.counted = layers.Embedding(12, 8), layers.Embedding(20, 8)

        def call(self, x: Any) -> Any:
            counted = self.counted(tf.range(tf.shape(x)[-2]))
            return x + self.fixed(tf.range(12)) + counted

    x = keras.Input([None])
    placed = Positions()(layers.Embedding(20, 8)(x))
    model = keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.Dense(8, "tanh")(placed))))
    model = s.compiled(model, optimizer=keras.optimizers.SGD(0.1))
    return result(model, model.fit(s.dealt(data=(s.tokens, s.labels)), epochs=2, verbose=0))


@case
def rows_looked_up_many_times(s: Setting) -> dict[str, Any]:
    """Thousands of lookups of a few rows, with optimizers that keep them separate: summed equally on all workers."""
    layers, found = s.keras.layers, {}
    for optimizer in (s.keras.optimizers.RMSprop(0.001), s.keras.optimizers.SGD(0.1)):
        s.seeded()
        looked_up = layers.Embedding(20, 64)
        model = s.keras.Sequential(
            [s.keras.Input([12]), looked_up, layers.GlobalAveragePooling1D(), layers.Dense(10)]
        )
        model = s.compiled(model, optimizer=optimizer)
        history = model.fit(s.dealt(250, data=(s.tokens, s.labels)), epochs=3, verbose=0)
        found |= {f"{optimizer.name} {part}": value for part, value in result(model, history).items()}
    return found


@case
def numbers_of_batches(s: Setting) -> dict[str, Any]:
    """Metrics get one number per batch or per class: means are averaged over workers, sums are added."""
    s.seeded()
    keras, tf = s.keras, s.tf
    sums = {name: keras.metrics.Sum(name) for name in ("of_rows", "of_counts")}
    means = {name: keras.metrics.Mean(name) for name in ("mean", "classes", "weighed")}

    class Net(keras.Model):
        @property
        def metrics(self) -> Any:
            return [*sums.values(), *means.values()]

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                of_rows = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
                loss = tf.reduce_mean(of_rows)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            rows = tf.cast(tf.shape(x)[0], tf.float32)
            sums["of_rows"].update_state(0.01 * tf.reduce_sum(of_rows))
            sums["of_counts"].update_state(rows)
            means["mean"].update_state(tf.reduce_sum(of_rows) / rows)
            means["classes"].update_state(tf.reduce_mean(predicted, axis=0))
            means["weighed"].update_state(loss, sample_weight=rows)
            found = {each.name: each.result() for each in self.metrics}
            return found | {"width": tf.shape(x)[1]}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile(keras.optimizers.SGD(0.01))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def variables_of_tensorflow(s: Setting) -> dict[str, Any]:
    """A layer has TensorFlow variables that Keras 3 does not track: a trained one and a running mean."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Shifted(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.shift = tf.Variable(tf.random.normal([64], seed=3 + s.place.index), trainable=True)
            self.means = [tf.Variable(tf.zeros([64]), trainable=False)]

        def call(self, rows: Any, training: Any = None) -> Any:
            if training:
                self.means[0].assign(0.9 * self.means[0] + 0.1 * tf.reduce_mean(rows, 0))
            return rows + self.shift

    shifted, rate = Shifted(), keras.optimizers.SGD(0.01)

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = tf.reduce_mean(
                    keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
                )
            rate.apply_gradients([(tape.gradient(loss, shifted.shift), shifted.shift)])
            return {"loss": loss}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(shifted(x)))
    model.compile()
    history = model.fit(s.dealt(flat=True), epochs=2, verbose=0)
    own = {"shift": shifted.shift.numpy(), "means": shifted.means[0].numpy()}
    return result(model, history, **own)
