"""Optimizers and custom training steps."""

from __future__ import annotations

import warnings
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.training.case_setting import Setting, case, result


def crossentropy(s: Setting, y: Any, predicted: Any) -> Any:
    return s.tf.reduce_mean(s.keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True))


@case
def optimizers_in_a_list(s: Setting) -> dict[str, Any]:
    """Each layer has its own optimizer, for example with another learning rate."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = crossentropy(s, y, self(x, training=True))
            for optimizer, layer in zip(self.parts, self.layers[1:], strict=True):
                variables = layer.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.parts = [keras.optimizers.Adam(0.003), keras.optimizers.SGD(0.1)]
    model.compile()
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def optimizer_in_a_closure(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras, tf = s.keras, s.tf
    optimizer = keras.optimizers.Adam(0.003)

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = crossentropy(s, y, self(x, training=True))
            variables = self.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile()
    found = result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return found | {f"weight of optimizer {at}": np.asarray(each) for at, each in enumerate(variables)}


@case
def own_accumulation(s: Setting) -> dict[str, Any]:
    """A step sums gradients in variables; an optimizer applies them in a branch, every third step."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            self.passed.assign_add(1)
            with tf.GradientTape() as tape:
                loss = crossentropy(s, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            for total, gradient in zip(self.totals, gradients, strict=True):
                total.assign_add(gradient)
            tf.cond(self.passed % 3 == 0, self.take, lambda: None)
            return {"loss": loss}

        def take(self) -> None:
            means = [total / 3.0 for total in self.totals]
            self.optimizer.apply_gradients(zip(means, self.trainable_variables, strict=True))
            for total in self.totals:
                total.assign(tf.zeros_like(total))

    layers = keras.layers
    x = keras.Input([64])
    normal = layers.BatchNormalization(synchronized=True)(layers.Dense(16)(x))
    model = Net(x, layers.Dense(10)(normal))
    model.passed = tf.Variable(0, trainable=False)
    model.totals = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in model.trainable_variables]
    model.compile(keras.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        history = model.fit(s.dealt(flat=True), epochs=2, verbose=0)
    assert not [str(each.message) for each in told if "rows of a batch" in str(each.message)]
    totals = {f"weight of totals {at}": each.numpy() for at, each in enumerate(model.totals)}
    return result(model, history, **totals)


@case
def adversarial(s: Setting) -> dict[str, Any]:
    """Two models, each with an optimizer; batch statistics also change after the first model's step."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Adversarial(keras.Model):
        def __init__(self, generator: Any, discriminator: Any) -> None:
            super().__init__()
            self.generator, self.discriminator = generator, discriminator
            self.mean_loss = keras.metrics.Mean(name="d_loss")

        def call(self, x: Any) -> Any:
            return self.discriminator(self.generator(x))

        @property
        def metrics(self) -> Any:
            return [self.mean_loss]

        def train_step(self, data: Any) -> Any:
            x, _ = data
            distance = keras.losses.BinaryCrossentropy(from_logits=True)
            made = self.generator(x[:, :8], training=True)
            with tf.GradientTape() as tape:
                real, fake = self.discriminator(x, training=True), self.discriminator(made, training=True)
                loss = distance(tf.ones_like(real), real) + distance(tf.zeros_like(fake), fake)
            variables = self.discriminator.trainable_variables
            self.discriminator.optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), variables, strict=True)
            )
            with tf.GradientTape() as tape:
                fake = self.discriminator(self.generator(x[:, :8], training=True))
                g_loss = distance(tf.ones_like(fake), fake)
            variables = self.generator.trainable_variables
            self.optimizers["generator"].apply_gradients(
                zip(tape.gradient(g_loss, variables), variables, strict=True)
            )
            self.mean_loss.update_state(loss)
            return {"d_loss": self.mean_loss.result(), "g_loss": g_loss}

    layers = keras.layers
    generator = keras.Sequential(
        [keras.Input([8]), layers.Dense(16), layers.BatchNormalization(synchronized=True), layers.Dense(64)]
    )
    discriminator = keras.Sequential([keras.Input([64]), layers.Dense(16, "tanh"), layers.Dense(1)])
    discriminator.compile(keras.optimizers.Adam(0.001))
    model = Adversarial(generator, discriminator)
    model.optimizers = {"generator": keras.optimizers.RMSprop(0.001)}
    model.compile()
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def results_of_all_metrics(s: Setting) -> dict[str, Any]:
    """The first step in Keras' guide: some metrics have results with several names."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = crossentropy(s, y, predicted)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, predicted)
            return {metric.name: metric.result() for metric in self.metrics}

        def test_step(self, data: Any) -> Any:
            x, y = data
            predicted = self(x, training=False)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(crossentropy(s, y, predicted))
                else:
                    metric.update_state(y, predicted)
            return {metric.name: metric.result() for metric in self.metrics}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile(keras.optimizers.Adam(0.003), metrics=["accuracy"])
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.dealt(100, flat=True), verbose=0)
    return result(model, history)


@case
def losses_added_by_layers(s: Setting) -> dict[str, Any]:
    """A variational model without noise: a mean over rows of sums over other axes, and an activity regularizer."""
    s.seeded()
    keras, tf = s.keras, s.tf
    layers = keras.layers

    class Coded(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.01 * tf.reduce_mean(tf.reduce_sum(tf.square(x), axis=1)))
            return x

    x = keras.Input([64])
    coded = Coded()(layers.Dense(8, activity_regularizer=keras.regularizers.L2(0.01))(x))
    model = keras.Model(x, layers.Dense(10)(coded))
    model = s.compiled(model)
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def embedding(s: Setting) -> dict[str, Any]:
    """Sparse gradients contain a row of the table more than once."""
    s.seeded()
    keras = s.keras
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([12]), layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(10)]
    )
    model = s.compiled(model, optimizer=keras.optimizers.RMSprop(0.003))
    found = result(model, model.fit(s.dealt(data=(s.tokens, s.labels)), epochs=2, verbose=0))
    model.compile(keras.optimizers.Adam(0.003), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(s.dealt(data=(s.tokens, s.labels)), epochs=2, verbose=0)
    return found | {f"other {name}": value for name, value in result(model, history).items()}


@case
def accumulated_gradients(s: Setting) -> dict[str, Any]:
    model = s.dense(optimizer=s.keras.optimizers.Adam(0.003, gradient_accumulation_steps=3))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def moving_average(s: Setting) -> dict[str, Any]:
    optimizer = s.keras.optimizers.Adam(0.003, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5)
    model = s.dense(optimizer=optimizer)
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def weight_decay(s: Setting) -> dict[str, Any]:
    model = s.dense(optimizer=s.keras.optimizers.AdamW(0.003, weight_decay=0.1, clipnorm=0.5))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def mixed_precision(s: Setting) -> dict[str, Any]:
    """Each worker's gradient is rounded to 8 bits before the sum; the low rate keeps this error small.

    The loss is computed from 32 bits, as Keras advises: tf_keras rounds a mean of 16-bit losses to 8 bits.
    """
    mixed = s.keras.mixed_precision
    mixed.set_global_policy("mixed_bfloat16")
    try:
        s.seeded()
        layers = s.keras.layers
        hidden, output = layers.Dense(32, "relu"), layers.Activation("linear", dtype="float32")
        model = s.keras.Sequential([s.keras.Input([64]), hidden, layers.Dense(10), output])
        model = s.compiled(model, optimizer=s.keras.optimizers.SGD(0.01))
        return result(model, model.fit(s.dealt(flat=True), epochs=1, verbose=0))
    finally:
        mixed.set_global_policy("float32")


@case
def scaled_loss(s: Setting) -> dict[str, Any]:
    """As with 16-bit floats: if one worker's row causes infinite gradients, all workers skip the step."""
    keras = s.keras
    model = s.dense(optimizer=keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.003)))
    images = s.flat.copy()
    images[-1] = np.inf
    history = model.fit(s.dealt(data=(images, s.labels)), epochs=2, verbose=0)
    return result(model, accuracy=history.history["accuracy"])


@case
def compiled_by_xla(s: Setting) -> dict[str, Any]:
    model = s.dense(jit_compile=True)
    return result(model, model.fit(s.dealt(flat=True), epochs=1, verbose=0))


@case
def unfrozen_and_fitted_again(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras = s.keras
    layers = keras.layers
    base = keras.Sequential([keras.Input([64]), layers.Dense(16, "relu")])
    base.trainable = False
    model = s.compiled(keras.Sequential([keras.Input([64]), base, layers.Dense(10)]))
    model.fit(s.dealt(flat=True), epochs=1, verbose=0)
    base.trainable = True
    model = s.compiled(model, optimizer=keras.optimizers.Adam(0.0003))
    return result(model, model.fit(s.dealt(flat=True), epochs=1, verbose=0))


@case
def fitted_in_a_loop(s: Setting) -> dict[str, Any]:
    model = s.dense()
    histories = [model.fit(s.dealt(flat=True), epochs=1, verbose=0) for _ in range(3)]
    losses = [history.history["loss"][0] for history in histories]
    return result(model, losses=losses, steps=int(np.asarray(model.optimizer.iterations)))


@case
def searched_by_each_then_trained_by_all(s: Setting) -> dict[str, Any]:
    """Each worker runs its own KerasTuner search; then all train with the result."""
    import keras_tuner

    from ignite_tf_magic import independent

    def build(choices: Any) -> Any:
        rate = choices.Choice("rate", [1e-6, 0.1])
        return s.dense(optimizer=s.keras.optimizers.SGD(rate))

    with independent(), TemporaryDirectory() as folder:
        search = keras_tuner.GridSearch(build, objective="val_loss", directory=folder, project_name="rates")
        search.search(s.flat, s.labels, epochs=2, validation_data=s.test_flat, verbose=0)
        (best,) = search.get_best_hyperparameters()
        num_tried = len(search.oracle.trials)
    model = build(best)
    history = model.fit(s.dealt(flat=True), epochs=2, verbose=0)
    return result(model, history, rate=best.get("rate"), num_tried=num_tried)
