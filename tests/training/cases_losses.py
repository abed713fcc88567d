"""Losses and metrics that are not means over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.training.case_setting import Setting, case, result


def tagger(s: Setting, *, mask_zero: bool = True) -> Any:
    """Return a model that labels each step of a sequence."""
    s.seeded()
    keras = s.keras
    layers = keras.layers
    x = keras.Input([12])
    embedded = layers.Embedding(20, 8, mask_zero=mask_zero)(x)
    return keras.Model(x, layers.Dense(5)(layers.Dense(8, "tanh")(embedded)))


def tags(s: Setting) -> Any:
    return s.tokens, (s.tokens % 5).astype(np.int32)


@case
def masked_sequences(s: Setting) -> dict[str, Any]:
    model = s.compiled(tagger(s), weighted_metrics=["accuracy"])
    data = s.dealt(data=tags(s))
    history = model.fit(data, epochs=2, validation_data=s.dealt(100, data=tags(s)), verbose=0)
    return result(model, history)


@case
def masked_sequences_by_name(s: Setting) -> dict[str, Any]:
    """The loss is given by name, so Keras creates its object."""
    model = tagger(s)
    inputs, outputs = model.inputs, s.keras.layers.Activation("softmax")(model.outputs[0])
    model = s.compiled(s.keras.Model(inputs, outputs), loss="sparse_categorical_crossentropy", metrics=())
    data = s.dealt(data=tags(s))
    history = model.fit(data, epochs=2, validation_data=s.dealt(100, data=tags(s)), verbose=0)
    return result(model, history)


@case
def sum_of_losses(s: Setting) -> dict[str, Any]:
    loss = s.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = s.dense(loss=loss, optimizer=s.keras.optimizers.SGD(0.001))
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def mean_by_weights(s: Setting) -> dict[str, Any]:
    """The sums of weights differ between workers."""
    loss = s.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model = s.dense(loss=loss)
    weights = np.linspace(0.0, 3.0, len(s.labels), dtype=np.float32)
    history = model.fit(s.dealt(data=(s.flat, s.labels, weights)), epochs=2, verbose=0)
    return result(model, history)


@case
def weights_of_uneven_sums(s: Setting) -> dict[str, Any]:
    model = s.dense(weighted_metrics=["accuracy"], metrics=())
    weights = np.linspace(0.0, 3.0, len(s.labels), dtype=np.float32)
    return result(model, model.fit(s.dealt(data=(s.flat, s.labels, weights)), epochs=2, verbose=0))


@case
def unreduced_losses(s: Setting) -> dict[str, Any]:
    """Keras passes the per-row losses to the tape, which sums them."""
    loss = s.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    model = s.dense(loss=loss, optimizer=s.keras.optimizers.SGD(0.001))
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def unreduced_losses_with_a_mean(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras, tf = s.keras, s.tf
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(crossentropy(y, self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile(keras.optimizers.Adam(0.003))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def losses_with_a_call_of_their_own(s: Setting) -> dict[str, Any]:
    """A loss class reduces to the mean over rows itself, and takes no weights."""
    keras, tf = s.keras, s.tf

    class Squares(keras.losses.Loss):
        def __call__(self, y_true: Any, y_pred: Any) -> Any:  # type: ignore[override]
            made = y_pred[:, 1]
            return tf.reduce_mean(tf.square(tf.cast(tf.reshape(y_true, [-1]), made.dtype) - made))

        call = __call__

    squares = Squares()

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = squares(y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    inputs = keras.Input([64])
    net = Net(inputs, keras.layers.Dense(10)(inputs))
    net.compile(keras.optimizers.SGD(0.001))
    return result(net, net.fit(s.dealt(flat=True), epochs=1, verbose=0))


@case
def losses_of_keras_that_see_all_rows(s: Setting) -> dict[str, Any]:
    """One loss compares rows with each other, the other returns one number per batch."""
    keras, found = s.keras, {}
    if s.framework == "tf_keras":
        return found
    for loss in (keras.losses.Circle(), keras.losses.Dice()):
        s.seeded()
        layers = keras.layers
        out = (
            layers.UnitNormalization()
            if isinstance(loss, keras.losses.Circle)
            else layers.Activation("sigmoid")
        )
        model = keras.Sequential([keras.Input([64]), layers.Dense(8), out])
        model.compile(keras.optimizers.SGD(0.01), loss)
        y = s.labels if isinstance(loss, keras.losses.Circle) else np.eye(8, dtype=np.float32)[s.labels % 8]
        history = model.fit(s.dealt(data=(s.flat, y)), epochs=2, verbose=0)
        found |= {f"{loss.name} {name}": value for name, value in result(model, history).items()}
    return found


@case
def several_outputs(s: Setting) -> dict[str, Any]:
    """Several inputs and outputs, with different kinds of losses and loss weights."""
    s.seeded()
    keras = s.keras
    layers = keras.layers
    image, tokens = keras.Input([64], name="image"), keras.Input([12], name="tokens")
    embedded = layers.Embedding(20, 8, mask_zero=True)(tokens)
    steps = layers.Dense(5, name="steps")(embedded)
    joined = layers.Concatenate()([layers.Dense(8, "relu")(image), layers.Dense(8)(layers.Flatten()(steps))])
    kind, size = layers.Dense(10, name="kind")(joined), layers.Dense(1, name="size")(joined)
    model = keras.Model({"image": image, "tokens": tokens}, {"kind": kind, "size": size, "steps": steps})
    sparse = keras.losses.SparseCategoricalCrossentropy
    model.compile(
        keras.optimizers.Adam(0.003),
        {
            "kind": sparse(from_logits=True),
            "size": keras.losses.Huber(reduction="sum"),
            "steps": sparse(True),
        },
        loss_weights={"kind": 1.0, "size": 0.02, "steps": 0.5},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    x = {"image": s.flat, "tokens": s.tokens}
    y = {"kind": s.labels, "size": s.flat[:, :1], "steps": (s.tokens % 5).astype(np.int32)}
    return result(model, model.fit(s.dealt(data=(x, y)), epochs=2, verbose=0))


@case
def metrics_of_many_kinds(s: Setting) -> dict[str, Any]:
    keras, tf = s.keras, s.tf

    class Largest(keras.metrics.Metric):
        """The largest prediction, which no sum over workers gives."""

        def __init__(self, name: str = "largest") -> None:
            super().__init__(name=name)
            self.value = self.add_weight(name="value", shape=(), initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.value.assign(tf.maximum(tf.cast(tf.reduce_max(y_pred), tf.float32), self.value))

        def result(self) -> Any:
            return tf.convert_to_tensor(self.value)

        def reset_state(self) -> None:
            self.value.assign(0.0)

    s.seeded()
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(3, "sigmoid")])
    metrics = [keras.metrics.AUC(), keras.metrics.F1Score(average=None), keras.metrics.R2Score(), Largest()]
    if s.framework == "keras":
        metrics.append(keras.metrics.PearsonCorrelation())
    model.compile(keras.optimizers.Adam(0.003), "binary_crossentropy", metrics=metrics)
    y = np.eye(3, dtype=np.float32)[s.labels % 3]
    data = s.dealt(data=(s.flat, y))
    history = model.fit(data, epochs=2, validation_data=s.dealt(100, data=(s.flat, y)), verbose=0)
    return result(model, history)


@case
def results_that_are_variables(s: Setting) -> dict[str, Any]:
    """A metric's result is its own variable, as in Keras' guide."""
    keras, tf = s.keras, s.tf

    class Right(keras.metrics.Metric):
        def __init__(self, name: str = "right") -> None:
            super().__init__(name=name)
            self.count = self.add_weight(name="count", shape=(), initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            found = tf.argmax(y_pred, 1, tf.int32) == tf.cast(tf.reshape(y_true, [-1]), tf.int32)
            self.count.assign_add(tf.reduce_sum(tf.cast(found, tf.float32)))

        def result(self) -> Any:
            return self.count

        def reset_state(self) -> None:
            self.count.assign(0.0)

    model = s.dense(metrics=[Right()])
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def compared_rows(s: Setting) -> dict[str, Any]:
    """A custom step compares rows of all workers with each other."""
    import ignite_tf_magic as itf

    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                made, labels = itf.all_rows(tf.math.l2_normalize(self(x, training=True), 1), y)
                near = tf.matmul(made, made, transpose_b=True)
                alike = tf.cast(labels[:, None] == labels[None, :], near.dtype)
                loss = tf.reduce_mean(tf.square(near - alike))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x = keras.Input([64])
    model = Net(x, keras.layers.Dense(10)(keras.layers.Dense(16, "relu")(x)))
    model.compile(keras.optimizers.Adam(0.003))
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))
