"""Losses of rows that nobody reduces: the tape or Keras adds them up."""

from __future__ import annotations

from typing import Any

from tests.training.case_setting import Setting, case, result


@case
def rows_given_to_the_tape(s: Setting) -> dict[str, Any]:
    """A step of the script's own that differentiates a loss for each row, and for each pair of views of a row."""
    s.seeded()
    keras, tf = s.keras, s.tf
    rate = keras.optimizers.SGD(0.001)

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                predicted = self(x, training=True)
                of_rows = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
                of_views = tf.concat([of_rows, 0.5 * tf.square(predicted[:, 0])], 0)
                mean = tf.reduce_mean(of_rows)
                of_parts = tf.stack([mean, tf.reduce_mean(tf.square(predicted))])
            for loss in (of_rows, of_views, mean, of_parts):
                gradients = tape.gradient(loss, self.trainable_variables)
                rate.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": mean}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile()
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def gradients_of_inputs(s: Setting) -> dict[str, Any]:
    """A penalty on how much the outputs for rows change with their own inputs: a gradient that no optimizer takes."""
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
def rows_added_by_layers(s: Setting) -> dict[str, Any]:
    """A layer that adds a loss for each row, beside the loss of the model; tf_keras refuses that."""
    if s.framework == "tf_keras":
        return {}
    s.seeded()
    keras, tf = s.keras, s.tf
    layers = keras.layers

    class Coded(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.001 * tf.reduce_sum(tf.square(x), axis=1))
            return x

    x = keras.Input([64])
    model = keras.Model(x, layers.Dense(10)(Coded()(layers.Dense(8)(x))))
    model = s.compiled(model, optimizer=keras.optimizers.SGD(0.001), metrics=())
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def lookups_of_positions(s: Setting) -> dict[str, Any]:
    """An embedding of positions: one lookup for all rows, whose gradients are added up already."""
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
    model = s.compiled(model, optimizer=keras.optimizers.Adam(0.003))
    return result(model, model.fit(s.dealt(data=(s.tokens, s.labels)), epochs=2, verbose=0))


@case
def rows_looked_up_many_times(s: Setting) -> dict[str, Any]:
    """Thousands of lookups of few rows, by optimizers that keep them apart: added up alike on all workers."""
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
def probabilities_taken_for_logits(s: Setting) -> dict[str, Any]:
    """A slip that Keras forgives, as it looks for the logits behind a softmax; in a loss that reduces by itself."""
    s.seeded()
    keras, tf = s.keras, s.tf

    def loss(y: Any, predicted: Any) -> Any:
        of_rows = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
        mask = tf.cast(tf.reshape(y, [-1]) > 0, tf.float32)
        return tf.reduce_sum(of_rows * mask) / tf.reduce_sum(mask)

    layers = keras.layers
    model = keras.Sequential([keras.Input([64]), layers.Dense(16, "relu"), layers.Dense(10, "softmax")])
    model = s.compiled(model, loss=loss)
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def numbers_of_batches(s: Setting) -> dict[str, Any]:
    """Metrics that are given one number for a batch, or one for each class, and what a step returns beside them."""
    s.seeded()
    keras, tf = s.keras, s.tf
    sums = {name: keras.metrics.Sum(name) for name in ("of_rows", "of_means", "of_batches", "of_counts")}
    means = {name: keras.metrics.Mean(name) for name in ("mean", "mean_of_sums", "classes", "weighed")}

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
            right = tf.equal(tf.argmax(predicted, 1, tf.int32), tf.cast(tf.reshape(y, [-1]), tf.int32))
            rows = tf.cast(tf.shape(x)[0], tf.float32)
            sums["of_rows"].update_state(0.01 * tf.reduce_sum(of_rows))
            sums["of_means"].update_state(loss)
            sums["of_batches"].update_state(1.0)
            sums["of_counts"].update_state(rows)
            means["mean"].update_state(tf.reduce_sum(of_rows) / rows)
            means["mean_of_sums"].update_state(tf.math.count_nonzero(right, dtype=tf.float32) + 1e-7)
            means["classes"].update_state(tf.reduce_mean(predicted, axis=0))
            means["weighed"].update_state(loss, sample_weight=2.0)
            found = {each.name: each.result() for each in self.metrics}
            return found | {"right": tf.reduce_sum(tf.cast(right, tf.int32)), "width": tf.shape(x)[1]}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile(keras.optimizers.SGD(0.01))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def variables_of_tensorflow(s: Setting) -> dict[str, Any]:
    """A layer that holds variables of its own, which Keras 3 does not know of: trained, and a mean of what came by."""
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


@case
def sums_of_rows(s: Setting) -> dict[str, Any]:
    """Sums over the rows of a batch that a layer adds, and that a step gives to a tape."""
    s.seeded()
    keras, tf = s.keras, s.tf
    rate = keras.optimizers.SGD(0.0003)

    class Added(keras.layers.Layer):
        def call(self, rows: Any) -> Any:
            self.add_loss(0.001 * tf.reduce_sum(tf.square(rows)))
            return rows

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            x, y = data
            with tf.GradientTape() as tape:
                of_rows = keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True)
                total = tf.reduce_sum(of_rows) + 0.1 * tf.reduce_sum(tf.square(self.layers[1](x)))
            gradients = tape.gradient(total, self.trainable_variables)
            rate.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {**logs, "total": 0.01 * total}

    x = keras.Input([64])
    hidden = Added()(keras.layers.Dense(16, "relu")(x))
    model = Net(x, keras.layers.Dense(10)(hidden))
    model = s.compiled(model, keras.optimizers.SGD(0.01))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))
