"""Tests of training in cells: variables go in; metrics, a chart, a result and the model come out."""

from __future__ import annotations

import ast
import base64
import json
import re

import pytest

FIT = """
import keras
import tensorflow as tf
import ignite_tf_magic

scaled = lambda row: (tf.cast(row["val"]["pixels"], tf.float32) / scale, row["val"]["label"])
rows = ignite_tf_magic.IgniteDataset(CACHE).map(scaled)
model = keras.Sequential([keras.layers.Dense(units, "relu"), keras.layers.Dense(10, "softmax")], name="digits")
ignite_tf_magic.config(units=units, scale=scale, layers=["dense", "dense"])
model.compile(keras.optimizers.Adam(0.002), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(rows.batch(32), epochs=3, verbose=2)
ignite_tf_magic.result({"weights": weights.sum(), "labels": table["label"].tolist()})
"""


@pytest.fixture(scope="module")
def trained(kernel, digits):
    """The result of a cell that trained a model, and the id of its run."""
    made = kernel.run(
        "import numpy as np, pandas as pd\n"
        f"CACHE, scale, units = {digits!r}, 16.0, 8\n"
        "weights, table = np.arange(5), pd.DataFrame({'label': ['a', 'b']})"
    )
    assert made.error is None
    cell = kernel.run(
        f"%%ignite_tf start {digits} -o trained --tag told --note 'the first' "
        f"--push CACHE,scale,units,weights,table{FIT}"
    )
    assert cell.error is None, cell
    return cell, re.search(r"run (\S+): 1 worker", cell.stdout)[1]


def test_the_cell_shows_a_chart_that_is_drawn_again_and_sums_up(trained):
    cell, run_id = trained
    pictures = [data for data in cell.shown if "image/png" in data]
    assert base64.b64decode(pictures[0]["image/png"]).startswith(b"\x89PNG")
    assert re.search(r"epoch 3/3, step 36: accuracy 0\.\d+, loss \d", cell.text)
    assert re.search(r"[\d,]+ examples/s, waiting for data \d+% of the time", cell.text)
    assert f"run {run_id}: succeeded" in cell.text


def test_the_history_is_a_frame(kernel, trained):
    shown = kernel.run("h = trained.history; print(list(h.columns[:5]), h.epoch.tolist(), h.step.tolist())")
    assert "['training', 'epoch', 'step', 'accuracy', 'loss'] [0, 1, 2] [12, 24, 36]" in shown.stdout
    assert kernel.run("h.loss.is_monotonic_decreasing").text.strip() == "True"
    assert kernel.run("len(trained.metrics) >= 3").text.strip() == "True"


def test_history_shows_one_run_and_compares_several(kernel, trained):
    _, run_id = trained
    one = kernel.run(f"%ignite_tf history {run_id}")
    assert re.search(r"^ +3 +36 +0\.\d+", one.text, re.MULTILINE)
    both = kernel.run(f"%ignite_tf history {run_id} {run_id}")
    assert re.search(rf"^{run_id} +succeeded +told +1 +3 +36", both.text, re.MULTILINE)
    assert any("image/png" in data for data in both.shown)
    assert not any("igniteTfChart" in str(data) for data in both.shown), "a script, where nobody looks"
    described = kernel.run(f"%ignite_tf describe {run_id}").text
    assert re.search(r"^training +epoch 3/3, step 36: .*loss ", described, re.MULTILINE)


def test_the_script_of_a_run_is_shown_as_it_was_sent(kernel, trained):
    _, run_id = trained
    shown = kernel.run(f"%ignite_tf describe {run_id} --script").stdout
    assert shown == kernel.run("print(trained.script, end='')").stdout
    assert shown.startswith("\n"), "its lines are numbered as the cell's"
    assert "model.fit(" in shown
    refused = kernel.run(f"%ignite_tf describe {run_id} --script --json")
    assert "leave --json out" in str(refused.error)


def test_history_draws_a_chart_to_look_into_where_a_person_is(kernel, trained):
    _, run_id = trained
    kernel.run("import os; os.environ['IGNITE_TF_VIEW'] = 'widget'")
    try:
        both = kernel.run(f"%ignite_tf history {run_id} {run_id}")
    finally:
        kernel.run("del os.environ['IGNITE_TF_VIEW']")
    [chart] = [data["text/html"] for data in both.shown if "igniteTfChart" in data.get("text/html", "")]
    series = json.loads(re.search(r"update\((.*)\);", chart)[1])
    assert [run["name"] for run in series["runs"]] == [run_id] * 2
    assert series["metrics"] == ["accuracy", "loss"]
    assert series["runs"][0]["step"][-1] == 36 and len(series["runs"][0]["values"]["loss"]) >= 3
    assert chart.startswith("<img"), "which stays where no script may run"


def test_what_a_run_was_given_is_remembered(kernel, trained):
    _, run_id = trained
    given = ast.literal_eval(kernel.run("trained.parameters").text.strip())
    assert given.pop("tensorflow")[0].isdigit() and given.pop("keras")[0].isdigit()
    assert given == {
        "units": 8,
        "scale": 16.0,
        "layers": ["dense", "dense"],
        "model": "digits",
        "optimizer": "Adam",
        "learning_rate": 0.002,
        "loss": "sparse_categorical_crossentropy",
        "epochs": 3,
    }
    described = kernel.run(f"%ignite_tf describe {run_id}").text
    for line in (
        r"^tags +told$",
        r"^note +the first$",
        r"^parameters +.*units 8",
        r"^created by +ignite_tf_magic ",
    ):
        assert re.search(line, described, re.MULTILINE), described
    assert kernel.run("repr(trained)").text.strip() == repr(
        f"<run {run_id}: succeeded, 1 worker, reading DIGITS_NB>"
    )
    assert "epoch 3, step 36" in kernel.run("trained").shown[0]["text/html"]


def test_runs_are_compared_by_tag_and_their_best(kernel, digits, trained):
    _, run_id = trained
    kernel.run(f"CACHE, scale, units = {digits!r}, 16.0, 8")  # other cells reuse these names
    other = kernel.run(
        f"%%ignite_tf start {digits} --tag told --tag wide --push CACHE,scale,units,weights,table\n"
        + FIT.replace("units=units", "units=16").replace("epochs=3", "epochs=2")
    )
    other_id = re.search(r"run (\S+): 1 worker", other.stdout)[1]
    compared = kernel.run("%ignite_tf history --tag told --best loss").shown[-1]["text/plain"].splitlines()
    heads = compared[0].split()
    assert heads[:7] == ["run", "state", "tags", "workers", "epoch", "step", "loss"]
    assert {"units", "epochs"} <= set(heads) and not {"scale", "optimizer"} & set(heads), compared
    told = json.loads(kernel.run("%ignite_tf history --tag told --json").stdout)
    least = {run["id"]: min(record["values"]["loss"] for record in run["records"]) for run in told}
    assert set(least) == {run_id, other_id}
    assert [line.split()[0] for line in compared[1:3]] == sorted(least, key=least.get)
    only = kernel.run("%ignite_tf history --tag wide --json").stdout
    (listed,) = json.loads(only)
    assert (listed["id"], listed["tags"], listed["parameters"]["units"]) == (other_id, ["told", "wide"], 16)
    assert (
        "they have reported accuracy, loss"
        in kernel.run("%ignite_tf history --best nothing --tag told").error["evalue"]
    )
    assert other_id in kernel.run("%ignite_tf ps --all --tag wide").text
    assert run_id not in kernel.run("%ignite_tf ps --all --tag wide").text


def test_what_the_script_gave(kernel, trained):
    assert kernel.run("trained.result == {'weights': 10, 'labels': ['a', 'b']}").text.strip() == "True"


@pytest.mark.nightly
def test_the_model_is_loaded_with_one_call(kernel, trained):
    """Nightly. Shorter:
    tests/training/test_hostile_models.py::test_what_runs_code_or_reads_files_is_not_loaded
    """
    _, run_id = trained
    loaded = kernel.run(f"%ignite_tf model {run_id} -o net", timeout_s=300)
    assert f"net: the model digits of run {run_id}, 610 parameters" in loaded.stdout
    shape = kernel.run("net.predict(np.zeros((2, 64), np.float32), verbose=0).shape")
    assert shape.text.strip() == "(2, 10)"
    missing = kernel.run(f"%ignite_tf model {run_id} --model other")
    assert "has left no model 'other'; it has left digits" in missing.error["evalue"]


def test_a_run_that_trains_nothing_says_so(kernel, digits, tmp_path):
    script = tmp_path / "silent.py"
    script.write_text("print(__file__.rpartition('/')[2], len(CACHE))\n")
    cell = kernel.run(f"CACHE = 'four'\n%ignite_tf start {digits} --script {script} --push CACHE -o silent")
    assert "silent.py 4" in cell.stdout
    assert kernel.run("len(silent.history)").text.strip() == "0"
    assert "stores one with ignite_tf_magic.result(value)" in kernel.run("silent.result").error["evalue"]
    assert "`fit` leaves one when it ends" in kernel.run("silent.model()").error["evalue"]
    assert "has reported no training" in kernel.run("%ignite_tf history {silent.id}").text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--push nothing_there", "the notebook has no variable nothing_there"),
        ("--push function", "cannot send function"),
        ("--push flood", "256"),
        ("--script nowhere.py", "cannot be read"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_starts(kernel, digits, options, words):
    kernel.run("import numpy as np\ndef function(): pass\nflood = np.zeros(40_000_000)")
    is_line = "--script" in options
    cell = kernel.run(
        f"%ignite_tf start {digits} {options}" if is_line else f"%%ignite_tf start {digits} {options}\n1"
    )
    assert words in cell.error["evalue"]
    assert "run " not in cell.stdout


def test_a_function_of_the_notebook(kernel, digits):
    kernel.run(
        "import os, ignite_tf_magic\nfactor = 2\n"
        "def helper(n): return n * factor\n"
        "def train(n, more=0):\n"
        "    print('worker', os.environ['IGNITE_DATASET_PART'])\n"
        "    return {'found': helper(n) + more}\n"
    )
    called = kernel.run(f"found = ignite_tf_magic.run(train, {digits!r}, args=(4,), kwargs={{'more': 1}})")
    assert "worker 0-1023" in called.stdout
    assert kernel.run("found").text.strip() == "{'found': 9}"
    failing = kernel.run(f"def broken():\n    return 1 // 0\nignite_tf_magic.run(broken, {digits!r})")
    assert failing.error["ename"] == "RunFailed"
    assert "return 1 // 0" in failing.text + "".join(failing.error["traceback"])
