"""Losses of rows that nobody reduces: the tape or Keras adds them up."""

from __future__ import annotations

from typing import Any

from case_setting import Setting, case, result


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
