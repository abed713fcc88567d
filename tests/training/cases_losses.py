"""Losses and metrics that are no means over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.training.case_setting import Setting, case, result


def tagger(s: Setting, *, mask_zero: bool = True) -> Any:
    """A model that labels each step of a sequence."""
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
def sum_of_losses(s: Setting) -> dict[str, Any]:
    loss = s.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = s.dense(loss=loss, optimizer=s.keras.optimizers.SGD(0.001))
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def mean_by_weights(s: Setting) -> dict[str, Any]:
    """Weights whose sums differ between workers."""
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
    """Keras gives the losses of rows to the tape, which adds up."""
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
def own_masked_mean(s: Setting) -> dict[str, Any]:
    """A loss and a metric that reduce a batch by themselves, as those of translation do."""
    keras, tf = s.keras, s.tf

    def masked_loss(y_true: Any, y_pred: Any) -> Any:
        losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        mask = tf.cast(tf.cast(y_true, tf.int32) != 0, losses.dtype)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    def masked_accuracy(y_true: Any, y_pred: Any) -> Any:
        y_true = tf.cast(y_true, tf.int64)
        mask = tf.cast(y_true != 0, tf.float32)
        hits = tf.cast(tf.argmax(y_pred, axis=-1) == y_true, tf.float32)
        return tf.reduce_sum(hits * mask) / tf.reduce_sum(mask)

    model = s.compiled(tagger(s, mask_zero=False), loss=masked_loss, metrics=[masked_accuracy])
    data = s.dealt(data=tags(s))
    history = model.fit(data, epochs=2, validation_data=s.dealt(100, data=tags(s)), verbose=0)
    return result(model, history)


@case
def contrastive(s: Setting) -> dict[str, Any]:
    """A loss for each row that depends on the other rows of the batch."""
    keras, tf = s.keras, s.tf

    def contrast(y_true: Any, y_pred: Any) -> Any:
        near = tf.matmul(tf.math.l2_normalize(y_pred, 1), tf.math.l2_normalize(y_pred, 1), transpose_b=True)
        y_true = tf.reshape(y_true, [-1])
        alike = tf.cast(y_true[:, None] == y_true[None, :], near.dtype)
        return keras.losses.categorical_crossentropy(
            alike / tf.reduce_sum(alike, 1, keepdims=True), near, from_logits=True
        )

    model = s.dense(loss=contrast, metrics=())
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.dealt(100, flat=True), verbose=0)
    return result(model, history)


@case
def ranked_pairs(s: Setting) -> dict[str, Any]:
    """Differences of a row's label from those of all others, and of outputs; Keras 3 makes floats of whole labels."""
    tf = s.tf

    def ranks(y_true: Any, y_pred: Any) -> Any:
        labels, made = tf.reshape(y_true, [-1]), y_pred[:, 0]
        if s.framework == "tf_keras":
            labels = tf.cast(labels, made.dtype)
        wanted = labels[:, None] - labels[None, :]
        return tf.reduce_mean(tf.square(wanted - (made[:, None] - made[None, :])), axis=1)

    model = s.dense(loss=ranks, metrics=(), optimizer=s.keras.optimizers.SGD(0.001))
    history = model.fit(s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), verbose=0)
    return result(model, history)


@case
def losses_with_a_call_of_their_own(s: Setting) -> dict[str, Any]:
    """Classes that reduce by themselves: one compares rows, one does not, one takes no weights."""
    keras, tf = s.keras, s.tf

    class Pairs(keras.losses.Loss):
        def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            made = y_pred[:, 0]
            wanted = tf.cast(tf.reshape(y_true, [-1]), made.dtype)
            differences = (wanted[:, None] - wanted[None, :]) - (made[:, None] - made[None, :])
            return tf.reduce_mean(tf.square(differences))

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

    s.seeded()
    model = s.dense(loss=Pairs(), metrics=(), optimizer=keras.optimizers.SGD(0.001))
    found = result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))
    inputs = keras.Input([64])
    net = Net(inputs, keras.layers.Dense(10)(inputs))
    net.compile(keras.optimizers.SGD(0.001))
    other = result(net, net.fit(s.dealt(flat=True), epochs=1, verbose=0))
    return found | {f"own {name}": value for name, value in other.items()}


def views_in_halves(s: Setting, num_values: int) -> Any:
    """A loss that takes the halves of a batch for two views of the same rows, and gives so many values for each."""
    keras, tf = s.keras, s.tf

    def views(_: Any, y_pred: Any) -> Any:
        one, other = tf.split(tf.math.l2_normalize(y_pred, 1), 2)
        near = 5.0 * tf.matmul(one, other, transpose_b=True)
        places = tf.range(tf.shape(one)[0])
        return tf.repeat(
            keras.losses.sparse_categorical_crossentropy(places, near, from_logits=True), num_values
        )

    return views


@case
def views_in_halves_of_a_batch(s: Setting) -> dict[str, Any]:
    """Of arrays that all workers have: the rows of all workers come in the order of one process."""
    model = s.dense(loss=views_in_halves(s, 2), metrics=())
    validation = s.flat[:132], s.labels[:132]
    history = model.fit(
        s.flat, s.labels, batch_size=50, epochs=2, shuffle=False, validation_data=validation, verbose=0
    )
    return result(model, history)


@case
def views_that_are_fewer_than_rows(s: Setting) -> dict[str, Any]:
    model = s.dense(loss=views_in_halves(s, 1), metrics=())
    return result(model, model.fit(s.whole(50, flat=True), epochs=2, verbose=0))


@case
def losses_that_cannot_be_tried_out(s: Setting) -> dict[str, Any]:
    """One that counts on as many rows as a batch has."""
    tf = s.tf

    def of_fifty(y_true: Any, y_pred: Any) -> Any:
        made = tf.reshape(y_pred, [50, 10])
        return tf.reduce_mean(tf.square(made - tf.reduce_mean(made, 0)), 1) + tf.square(made[:, 1] - 1.0)

    model = s.dense(loss=of_fifty, metrics=(), optimizer=s.keras.optimizers.SGD(0.01))
    return result(model, model.fit(s.dealt(50, flat=True), epochs=2, verbose=0))


@case
def several_outputs(s: Setting) -> dict[str, Any]:
    """Several inputs and outputs, losses of several kinds, and their weights."""
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
        """What no sum over workers tells."""

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
    """A metric whose result is its variable itself, as in Keras' own guide."""
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
    """A step of the script's own that compares rows with each other: those of all workers."""
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
