"""One run of two workers for many scripts: tutorial idioms, picked rows, arriving rows, and ports.

Nightly tests of these scripts, with one worker and other Keras versions, are in test_idioms.py.
"""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training import test_idioms, test_private_ports
from tests.training.runs import by_script, in_turn

COLUMNS = test_idioms.pictures_columns()
NUM_ROWS = test_idioms.NUM_ROWS
# Sums over all workers of the data in each step.
SUMS = """
import hashlib, json
import keras
import ignite_tf_magic as itf

keys = keras.metrics.Sum("keys")
seen = keras.metrics.Sum("seen")


class Net(keras.Model):
    metrics = property(lambda self: [keys, seen])

    def train_step(self, data):
        x, y = data
        keys.update_state(y)
        seen.update_state(keras.ops.ones_like(y))
        return super().train_step(data)


def net():
    inputs = keras.Input([1])
    found = Net(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs))
    found.compile(keras.optimizers.SGD(0.1), "mse")
    return found
"""
SCRIPTS = {
    "ports": test_private_ports.WAIT + test_private_ports.CASES["sync"][0],
    "steps": test_idioms.BEGINNING.replace("IDIOM_PICTURES", "PICTURES")
    + test_idioms.STEPS
    + test_idioms.ENDING,
    "picked": SUMS
    + """
def fitted(batches):
    history = net().fit(batches, epochs=2, verbose=0, shuffle=False).history
    return {"seen": history["seen"], "keys": history["keys"]}

chosen = itf.IgniteDataset("PICTURES", where="digit < ?", where_args=[3])
selected = itf.IgniteDataset.from_sql("SELECT _KEY AS k, place * 2 AS x FROM PICTURES WHERE digit < 3")
found = {
    "where": fitted(chosen.map(lambda row: (row["val"]["place"][None], row["key"])).batch(40)),
    "sql": fitted(selected.map(lambda row: (row["X"][None], row["K"])).batch(40)),
}
print(json.dumps(found))
""",
    # A script reads rows into NumPy: this worker's rows, and all rows.
    "held": """
import json
import keras
import tensorflow as tf
import ignite_tf_magic as itf

counts = {name: keras.metrics.Sum(name) for name in ("rows", "keys", "values")}


class Net(keras.Model):
    metrics = property(lambda self: list(counts.values()))

    def train_step(self, data):
        x, y = data
        counts["rows"].update_state(tf.ones(tf.shape(y)))
        counts["keys"].update_state(tf.cast(y, tf.float32))
        counts["values"].update_state(tf.reduce_sum(x, 1))
        return super().train_step(data)


found = []
for assigned in (True, False):
    rows = itf.IgniteDataset("PICTURES").arrays(assigned=assigned)
    inputs = keras.Input([4])
    net = Net(inputs, keras.layers.Dense(1)(inputs))
    net.compile(keras.optimizers.SGD(1e-9), "mse")
    history = net.fit(rows["val"]["numbers"], rows["key"], batch_size=64, epochs=2, verbose=0)
    found.append({"mine": len(rows["key"]), **history.history})
print(json.dumps(found))
""",
    "ring": """
import json
import tensorflow as tf
import ignite_tf_magic as itf
from ignite_tf_magic.training.group import worker_group

strategy, group = itf.strategy(), worker_group()
total = tf.function(lambda: group.sum([tf.constant(1.5)])[0])
operations = total.get_concrete_function().graph.get_operations()
hints = [each.get_attr("communication_hint").decode() for each in operations if each.type == "CollectiveReduceV2"]
way = strategy.extended._communication_options.implementation.value
print(json.dumps({"hints": hints, "way": way, "total": float(total())}))
""",
    # The chief removes rows after the first epoch, while they are trained.
    "vanishing": """
import json
import keras
import numpy as np
import ignite_tf_magic as itf

class Remove(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and itf.task().is_chief:
            with itf.connect() as session:
                session.query("DELETE FROM PICTURES WHERE digit >= 3")

inputs = keras.Input([1])
net = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
net.compile(keras.optimizers.Adam(0.01), "mse")
rows = itf.IgniteDataset("PICTURES").map(lambda row: (row["val"]["place"][None], row["val"]["digit"]))
history = net.fit(rows.batch(10), epochs=4, verbose=0, callbacks=[Remove()]).history
print(json.dumps({"weights": [float(np.sum(each)) for each in net.get_weights()], **history}))
""",
    # This script must be the last one, because it adds rows.
    "coming": SUMS
    + """
import warnings
warnings.simplefilter("error")
rows = itf.IgniteDataset("PICTURES", follow=True)
model = net()
batches = rows.map(lambda row: (row["val"]["place"][None], row["key"])).batch(101)
history = model.fit(batches, steps_per_epoch=30, epochs=1, verbose=0, shuffle=False).history
weights = hashlib.sha256(model.get_weights()[0].tobytes()).hexdigest()
print(json.dumps({"seen": history["seen"][-1], "keys": history["keys"][-1], "weights": weights}))
""",
}
pytestmark = pytest.mark.timeout(1500)  # the first test waits for all scripts


@pytest.fixture(scope="module")
def said(session) -> dict[str, list[str]]:
    """The output of each script on each worker."""
    load("PICTURES", COLUMNS, replace=True, report=str)
    # All TensorFlow collectives use `ring`, which gives the same results as its automatic choice.
    request = RunRequest("PICTURES", in_turn(SCRIPTS), num_workers=2, communication="ring")
    run = session.start_run(request)
    texts, are_ports_checked, putting = ["", ""], False, _Putting()
    try:
        for chunk in run.follow():
            texts[chunk.worker] += chunk.text
            if not are_ports_checked and all("READY" in text for text in texts):
                are_ports_checked = True
                test_private_ports.check_ports_and_let_go_on(run)
            if "BEGIN coming" in chunk.text:
                putting.begin()
            elif "END coming" in chunk.text:
                putting.end()
    finally:
        putting.end()
        print(*texts, sep="\n")  # shows where a hanging run stopped
    assert run.failure() is None, texts
    return by_script(texts)


class _Putting:
    """Appends rows until `end`, because the share that a new row falls into is not known in advance."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._put)

    def begin(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def end(self) -> None:
        self._has_ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _put(self) -> None:
        while not self._has_ended.is_set():
            load("PICTURES", test_idioms.pictures_columns(300), append=True, report=str)


def answers(texts: list[str]) -> list:
    """Parse the JSON that each worker printed."""
    return [json.loads(line) for text in texts for line in text.splitlines() if line.startswith(("{", "["))]


def test_servers_are_reached_from_this_machine_alone(said):
    assert [text.splitlines()[-1] for text in said["ports"]] == ["FOUND 3.0"] * 2


def test_steps_are_those_of_one_process(said):
    test_idioms.check_steps(answers(said["steps"]))


def test_each_worker_trains_on_its_own_of_the_rows_that_nodes_pick_out(said):
    first, second = answers(said["picked"])
    assert first == second
    keys = [key for key in range(NUM_ROWS) if key % 10 < 3]
    for way in ("where", "sql"):
        assert first[way] == {"seen": [len(keys)] * 2, "keys": [sum(keys)] * 2}


def test_an_epoch_goes_on_with_the_rows_that_are_left(said):
    first, second = answers(said["vanishing"])
    assert first == second
    assert np.isfinite([*first["weights"], *first["loss"]]).all()
    lines = [line for text in said["vanishing"] for line in text.splitlines() if "are gone" in line]
    left = NUM_ROWS * 3 // 10
    assert lines[-1] == (
        f"ignite_tf_magic: epoch 4 trained {left} rows: {NUM_ROWS - left} of the {NUM_ROWS} that were in the cache "
        "when the run began are gone"
    )


def test_two_workers_share_the_rows_that_come(said):
    first, second = answers(said["coming"])
    assert first == second
    assert first["seen"] == 30 * 101
    assert first["keys"] > 0


def test_rows_that_a_script_holds_are_trained_once(said):
    of_its_own, of_all = answers(said["held"])[0]
    assert of_its_own["mine"] < of_all["mine"] == NUM_ROWS
    for found in (of_its_own, of_all):
        assert found["rows"] == [NUM_ROWS] * 2
        assert found["keys"] == pytest.approx([NUM_ROWS * (NUM_ROWS - 1) / 2] * 2)
        assert found["values"] == pytest.approx([float(COLUMNS["numbers"].sum())] * 2)


def test_tensors_go_round_as_asked(said):
    assert answers(said["ring"]) == [{"hints": ["ring"], "way": "RING", "total": 3.0}] * 2
