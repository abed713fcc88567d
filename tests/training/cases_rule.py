"""Custom training code: each worker's results on its rows are averaged by rows. See docs/training.md#one-rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.training.case_setting import Setting, case, result


def net(s: Setting, step: Callable[..., Any] | None = None) -> Any:
    """Return a model with one hidden layer and, optionally, a custom `train_step`."""
    s.seeded()
    methods = {} if step is None else {"train_step": step}
    x = s.keras.Input([64])
    hidden = s.keras.layers.Dense(16, "tanh")(x)
    return type("Net", (s.keras.Model,), methods)(x, s.keras.layers.Dense(10)(hidden))


def stepping(s: Setting, loss_of: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    tf = s.tf

    def train_step(model: Any, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss, "largest": tf.reduce_max(y)}

    return train_step


def by_hand(s: Setting, model: Any, loss_of: Callable[[Any, Any], Any], rate: float) -> dict[str, Any]:
    """Apply the rule in one process: average each worker's gradients, weighted by its number of rows."""
    tf, losses = s.tf, []
    for _ in range(2):
        for parts in s.parts(data=(s.flat, s.labels)):
            total, sums, losses_of_step = sum(len(y) for _, y in parts), None, 0.0
            for x, y in parts:
                if len(y):
                    with tf.GradientTape() as tape:
                        loss = loss_of(tf.constant(y), model(x, training=True))
                    found = [
                        each * (len(y) / total) for each in tape.gradient(loss, model.trainable_variables)
                    ]
                    sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
                    losses_of_step += float(loss) * len(y) / total
            for variable, gradient in zip(model.trainable_variables, sums, strict=True):
                variable.assign_sub(rate * gradient)
        losses.append(losses_of_step)
    return result(model) | {"history loss": np.array(losses)}


def by_the_rule(s: Setting, loss_of: Callable[[Any, Any], Any], rate: float) -> dict[str, Any]:
    model = net(s, stepping(s, loss_of))
    if s.place.size == 1:
        return by_hand(s, model, loss_of, rate)
    model.compile(s.keras.optimizers.SGD(rate))
    found = result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))
    found.pop("history largest")
    return found


def crossentropy(s: Setting) -> Callable[[Any, Any], Any]:
    return lambda y, out: s.keras.losses.sparse_categorical_crossentropy(y, out, from_logits=True)


@case
def a_step_with_a_masked_mean(s: Setting) -> dict[str, Any]:
    of_rows, tf = crossentropy(s), s.tf

    def loss(y: Any, out: Any) -> Any:
        return tf.reduce_mean(tf.boolean_mask(of_rows(y, out), y > 3)) + tf.reduce_sum(out**2) * 1e-4

    return by_the_rule(s, loss, 0.1)


@case
def a_step_that_compares_rows(s: Setting) -> dict[str, Any]:
    tf = s.tf

    def loss(y: Any, out: Any) -> Any:
        alike = tf.cast(y[:, None] == y[None, :], tf.float32)
        return tf.reduce_mean(tf.square(tf.matmul(out, out, transpose_b=True) - alike))

    return by_the_rule(s, loss, 0.01)


@case
def a_loss_that_returns_one_number(s: Setting) -> dict[str, Any]:
    """A loss and a metric return one number: a mean over unmasked words, as in translation."""
    of_rows, tf = crossentropy(s), s.tf

    def masked(y: Any, out: Any) -> Any:
        y = tf.reshape(y, [-1])
        mask = tf.cast(tf.cast(y, tf.int32) > 3, tf.float32)
        return tf.reduce_sum(of_rows(y, out) * mask) / tf.reduce_sum(mask)

    model = net(s)
    if s.place.size == 1:
        return {**by_hand(s, model, masked, 0.1), "history loss": 0.0}
    model.compile(s.keras.optimizers.SGD(0.1), masked)
    model.fit(s.dealt(flat=True), epochs=2, verbose=0)
    return result(model) | {"history loss": 0.0}


@case
def a_metric_that_returns_one_number(s: Setting) -> dict[str, Any]:
    tf = s.tf

    def masked_accuracy(y: Any, out: Any) -> Any:
        y = tf.reshape(tf.cast(y, tf.int64), [-1])
        mask = tf.cast(y > 3, tf.float32)
        return tf.reduce_sum(tf.cast(tf.argmax(out, 1) == y, tf.float32) * mask) / tf.reduce_sum(mask)

    model = s.dense(metrics=[masked_accuracy])
    data = s.dealt(flat=True)
    return result(model, model.fit(data, epochs=2, validation_data=s.dealt(100, flat=True), verbose=0))


@case
def a_step_that_returns_a_sum_of_losses(s: Setting) -> dict[str, Any]:
    of_rows, tf = crossentropy(s), s.tf

    def train_step(model: Any, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            extra = 0.1 * tf.reduce_mean(tf.square(out))
            loss = tf.reduce_mean(of_rows(y, out)) + extra
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss, "extra": extra}

    model = net(s, train_step)
    model.compile(s.keras.optimizers.SGD(0.1), "mse")
    return result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))


@case
def a_step_that_is_a_function(s: Setting) -> dict[str, Any]:
    """`train_step` is a `@tf.function`, of a model that `fit` builds."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = keras.layers.Dense(16, "relu"), keras.layers.Dense(10)
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

        @tf.function
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.loss(y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            self.seen.update_state(loss)
            return {"seen": self.seen.result(), "last": loss}

    model = Net()
    model.compile(keras.optimizers.Adam(0.003), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found = result(model, model.fit(s.dealt(flat=True), epochs=2, verbose=0))
    again = result(model, model.fit(s.dealt(flat=True), epochs=1, verbose=0))
    return found | {f"again {name}": value for name, value in again.items()}


@case
def numbers_beside_rows(s: Setting) -> dict[str, Any]:
    tf = s.tf

    def train_step(model: Any, data: Any) -> Any:
        x, temperature = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) / temperature))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss, "temperature": temperature}

    model = net(s, train_step)
    model.compile(s.keras.optimizers.SGD(0.1))
    data = s.whole(flat=True).map(lambda x, y: (x, tf.constant(2.0)))
    found = result(model, model.fit(data, epochs=2, verbose=0))

    class Counted(s.keras.Model):
        def train_step(self, number: Any) -> Any:
            return {"seen": tf.cast(number, tf.float32)}

    x = s.keras.Input([4])
    counted = Counted(x, s.keras.layers.Dense(1)(x))
    counted.compile("sgd")
    history = counted.fit(tf.data.Dataset.range(5), verbose=0)
    return found | {"history of numbers": np.array(history.history["seen"])}


@case
def sparse_batches(s: Setting) -> dict[str, Any]:
    s.seeded()
    keras, tf = s.keras, s.tf
    x = keras.Input([64], sparse=True)
    model = s.compiled(keras.Model(x, keras.layers.Dense(10)(x)), optimizer=keras.optimizers.SGD(0.1))
    few = np.where(s.flat > 1, s.flat, 0)
    data = tf.data.Dataset.from_tensor_slices((few, s.labels)).batch(61)
    data = data.map(lambda x, y: (tf.sparse.from_dense(x), y))
    found = result(model, model.fit(data, epochs=2, validation_data=data.take(3), verbose=0))
    last = data.filter(lambda x, y: tf.reduce_sum(y) > 0)  # the number of batches is unknown
    return found | {"history of the rest": np.array(model.evaluate(last, verbose=0))}


@case
def ragged_batches_without_rows(s: Setting) -> dict[str, Any]:
    """The last batch has one row, so only the first worker has a row of it."""
    s.seeded()
    keras, tf = s.keras, s.tf

    class Summed(keras.layers.Layer):
        def call(self, words: Any) -> Any:
            return tf.reduce_sum(tf.one_hot(words, 20), axis=1)

    x = keras.Input([None], dtype="int32", ragged=True)
    model = s.compiled(
        keras.Model(x, keras.layers.Dense(10)(Summed()(x))), optimizer=keras.optimizers.SGD(0.1)
    )
    rows = tf.RaggedTensor.from_tensor(s.tokens[:61], padding=0)
    data = tf.data.Dataset.from_tensor_slices((rows, s.labels[:61])).batch(20)
    return result(model, model.fit(data, epochs=2, verbose=0))


@case
def batches_of_a_known_size(s: Setting) -> dict[str, Any]:
    of_rows, tf = crossentropy(s), s.tf
    sizes = []

    def loss(y: Any, out: Any) -> Any:
        sizes.append(out.shape[0])
        return tf.reduce_sum(of_rows(y, out)) / out.shape[0]

    model = net(s, stepping(s, loss))
    model.compile(s.keras.optimizers.SGD(0.1))
    data = s.tf.data.Dataset.from_tensor_slices((s.flat, s.labels)).batch(60, drop_remainder=True)
    history = model.fit(data, epochs=2, verbose=0)
    assert set(sizes) == {60 // s.place.size}
    found = result(model, history)
    del found["history largest"]
    return found


@case
def evaluated_in_a_callback(s: Setting) -> dict[str, Any]:
    keras = s.keras
    seen: list[float] = []

    class Tested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found = self.model.evaluate(s.flat[:77], s.labels[:77], verbose=0, return_dict=True)
            seen.extend(found.values())
            seen.append(float(np.sum(self.model.predict(s.flat[:5], verbose=0))))

    class TestedByTheChief(keras.callbacks.ModelCheckpoint):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found = self.model.evaluate(s.flat[:77], s.labels[:77], verbose=0, return_dict=True)
            seen.extend(found.values())

    counts = [
        keras.metrics.SparseCategoricalAccuracy(name="right"),
        keras.metrics.SparseTopKCategoricalAccuracy(3),
    ]
    model = s.dense(metrics=counts)
    history = model.fit(
        s.dealt(flat=True), epochs=2, validation_data=s.tests(flat=True), callbacks=[Tested()], verbose=0
    )
    found = result(model, history, **{"history in callbacks": np.array(seen)})
    seen.clear()
    model.fit(s.dealt(flat=True), epochs=1, callbacks=[TestedByTheChief("unused.keras")], verbose=0)
    by_all = model.evaluate(s.flat[:77], s.labels[:77], verbose=0)
    if s.place.is_chief:
        np.testing.assert_allclose(seen, by_all, rtol=1e-5)
    return found


@case
def trained_batch_by_batch(s: Setting) -> dict[str, Any]:
    model = s.dense(metrics=["accuracy"])
    logs = []
    for parts in s.parts(data=(s.flat, s.labels)):
        logs.append(model.train_on_batch(*s.own(parts)))
    found = result(model, **{"history of batches": np.array(logs)})
    model.reset_metrics()
    first = s.own(next(s.parts(data=(s.flat, s.labels))))
    return found | {"history of a test": np.array(model.test_on_batch(*first))}


def looped(s: Setting, model: Any, optimizer: Any) -> dict[str, Any]:
    """Train as in Keras' guides: a traced step over a dataset, no `fit`, no strategy. Batch sizes differ."""
    of_rows, tf = crossentropy(s), s.tf

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(of_rows(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _ in range(2):
        for x, y in s.dealt(flat=True):
            step(x, y)
    return result(model)


@case
def a_loop_with_a_tape(s: Setting) -> dict[str, Any]:
    return looped(s, net(s), s.keras.optimizers.Adam(0.003))


@case
def a_loop_whose_first_trace_makes_the_variables(s: Setting) -> dict[str, Any]:
    """In a `Sequential` without an input shape, the chief's weights are sent once they have values."""
    s.keras.utils.set_random_seed(1 + s.place.index)
    return looped(s, s.keras.Sequential([s.keras.layers.Dense(10)]), s.keras.optimizers.SGD(0.01))


@case
def batches_of_fewer_rows_than_workers(s: Setting) -> dict[str, Any]:
    model = s.dense(optimizer=s.keras.optimizers.SGD(0.01))
    history = model.fit(s.flat[:30], s.labels[:30], batch_size=1, shuffle=False, epochs=2, verbose=0)
    return result(model, history)


@case
def a_batch_without_rows(s: Setting) -> dict[str, Any]:
    """In a step without rows, momentum changes no weights, and the loss stays a number."""
    tf = s.tf

    def emptied(number: Any, batch: Any) -> Any:
        return tf.nest.map_structure(lambda part: part[: tf.where(number == 2, 0, tf.shape(part)[0])], batch)

    model = s.dense(optimizer=s.keras.optimizers.Adam(0.003))
    data = s.whole(flat=True)
    # One process skips the batch that is empty in the run.
    data = data.take(2).concatenate(data.skip(3)) if s.place.size == 1 else data.enumerate().map(emptied)
    return result(model, model.fit(data, epochs=2, verbose=0))


@case
def checked_numerics(s: Setting) -> dict[str, Any]:
    s.tf.debugging.enable_check_numerics()
    try:
        model = s.dense()
        return result(model, model.fit(s.dealt(flat=True), epochs=1, verbose=0))
    finally:
        s.tf.debugging.disable_check_numerics()
