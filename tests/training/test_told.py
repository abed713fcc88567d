"""Deviations from the results of one process are reported; errors are raised on all workers."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import keras
import numpy as np
import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training import keras_hooks
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.models import as_built
from ignite_tf_magic.training.records import TrainingRecord
from ignite_tf_magic.training.task import Place
from tests.training.processes import Workers

SCRIPT = Path(__file__).with_name("told_on.py")
NUM_CALLS = 2000  # as in sums_on.py


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of two workers that run told_on.py, bad_on.py and sums_on.py."""
    folder = tmp_path_factory.mktemp("told")
    arguments = [SCRIPT.name, "bad_on.py", "sums_on.py"]
    Workers(folder, 2, SCRIPT.with_name("scripts_in_turn.py"), arguments=arguments).run(
        IGNITE_TF_STOP_ON_NAN="1"
    )
    return folder


@pytest.fixture(scope="module")
def told(folder):
    return [json.loads((folder / f"told-{index}.json").read_text()) for index in range(2)]


def test_sums_are_right_in_any_order_and_leave_nothing_behind(folder):
    """A separate key for each call would leave two kilobytes each: see docs/decisions.md."""
    for index in range(2):
        found = json.loads((folder / f"sums-{index}.json").read_text())
        assert found["are_right"]
        assert max(found["grown_kib"].values()) < 0.5 * NUM_CALLS, found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shuffled_differently", "rows may be trained twice or left out"),
        ("adapted_to_own_rows_of_a_dataset", "string_lookup: adapt was given different rows on each worker"),
        ("own_rows_of_one_label", "rows may be trained twice or left out"),
        ("own_rows_sorted_by_labels", "rows may be trained twice or left out"),
        ("own_rows_of_labels_in_turns", "rows may be trained twice or left out"),
        ("own_rows_of_rare_labels", "rows may be trained twice or left out"),
        ("own_rows_of_like_labels", "rows may be trained twice or left out"),
        ("unsavable", "only the weights of the trained model were saved"),
    ],
)
def test_a_warning(told, name, words):
    assert told[0][name]["error"] is None
    assert any(words in each for each in told[0][name]["warnings"]), told[0][name]["warnings"]


@pytest.mark.parametrize("name", ["mirrored", "mirrored_by_tf_keras"])
def test_a_strategy_that_does_not_know_the_other_workers_is_refused(told, name):
    for of_worker in told:
        kind, words = of_worker[name]["error"]
        assert kind == "ConfigError"
        assert (
            "made in the scope of a MirroredStrategy, so each worker would train a model of its own" in words
        )


def test_a_metric_of_several_values(told):
    assert told[0]["several_values"] == {"warnings": [], "error": None, "result": [2, 3]}


def test_one_worker_is_told_of_its_strategy_and_keeps_a_metric_of_several_values(tmp_path):
    names = ["mirrored", "mirrored_by_tf_keras", "several_values"]
    Workers(tmp_path, 1, SCRIPT, arguments=names).run()
    told = json.loads((tmp_path / "told-0.json").read_text())
    assert told["several_values"] == {"warnings": [], "error": None, "result": [2, 3]}
    assert list((tmp_path / "igfs" / "training").glob("*/step-*.npz")), "it was saved"
    for name in names[:2]:
        assert told[name]["error"] is None
        (words,) = told[name]["warnings"]
        assert words.startswith(
            "the model was made for MirroredStrategy, so Keras trains it as usual. It starts from the beginning"
        )


def test_random_numbers_go_on_behind_trainings_and_are_each_workers_own_in_what_it_does_alone(told):
    first, other = (each["random_numbers"]["result"] for each in told)
    assert first["made"] == first["one_process"] == other["made"] == other["one_process"]
    assert first["behind"] == other["behind"]
    assert len({*first["inside"], *other["inside"], *first["behind"]}) == 6


def test_one_file_that_all_workers_save(told, folder):
    for of_worker in told:
        assert of_worker["saved_under_one_name"]["error"] is None
        assert of_worker["saved_under_one_name"]["result"] == [True] * 10
    assert not list(folder.glob(".worker*"))


def test_a_file_that_only_the_first_worker_has(told):
    (of_chief, _), (of_other, can_say) = (each["not_saved_here"]["result"] for each in told)
    assert of_chief == []
    assert ["ModelCheckpoint writes in the first worker only" in each for each in of_other] == [
        True
    ] * can_say


@pytest.mark.parametrize(
    "name",
    [
        "independent",
        "changed_at_random",
        "changed_at_random_with_few_labels",
        "same_rows_of_one_label",
    ],
)
def test_nothing_to_say(told, name):
    assert told[0][name] == {"warnings": [], "error": None, "result": None}


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("rate_by_the_clock", "sgd"),
        ("weights_without_an_optimizer", "only/bias"),
    ],
)
def test_workers_that_diverge_end_all(told, name, variable):
    for of_worker in told:
        kind, words = of_worker[name]["error"]
        assert kind == "WorkersDiffer"
        assert f"the workers have different values of {variable}" in words


def test_a_count_of_rows_is_each_workers_own(told):
    assert [each["rows_counted_in_a_variable"]["result"] for each in told] == [30, 25]
    assert not told[0]["rows_counted_in_a_variable"]["warnings"]


def test_weights_of_a_model_that_cannot_be_saved_whole(told, folder):
    """The saved weights fit a model that is built in the same way."""
    path = folder / "igfs" / "model" / "coder.weights.h5"

    class Coder(keras.Model):
        def __init__(self):
            super().__init__(name="coder")
            self.coder = keras.Sequential([keras.Input([16]), keras.layers.Dense(3), keras.layers.Dense(16)])

    coder = Coder()
    with as_built(coder):
        coder.load_weights(path)
    assert float(np.sum(coder.coder.get_weights()[0])) == pytest.approx(told[0]["unsavable"]["result"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another_rate_on_each", "differ in the optimizers, here [('SGD', {'learning_rate': 0.0"),
        ("other_words_on_each", "differ in what layers have been adapted to, here words: ["),
        ("other_epochs_on_each", "differ in the arguments of `fit`, here x is arrays or more, "),
        ("other_class_weights_on_each", "differ in the arguments of `fit`, here x is arrays or more, "),
        ("another_size_on_each", "differ in the shapes of the model's variables, here ["),
    ],
)
def test_models_that_differ_from_the_beginning(told, name, words):
    for of_worker in told:
        kind, said = of_worker[name]["error"]
        assert kind == "WorkersDiffer"
        assert words.partition(", here ")[0] in said
    assert words in told[0][name]["error"][1]


def test_words_of_all_workers_are_known_to_each(told):
    for of_worker in told:
        assert of_worker["adapted_to_own_rows_of_a_dataset"]["result"] == ["[UNK]", "b", "d", "c", "a"]


def test_layers_that_differ_after_adapt_are_named(told):
    for of_worker in told:
        kind, words = of_worker["adapted_to_own_batches"]["error"]
        assert (kind, "the layer bins has been adapted to" in words) == ("WorkersDiffer", True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_batch_on_one", "yields no batch (batches of all workers: 0, 1, of which"),
        ("batches_without_end_on_one", "incompatible numbers of batches: without end, 3. Let each"),
    ],
)
def test_batches_that_do_not_go_together(told, name, words):
    for of_worker in told:
        kind, said = of_worker[name]["error"]
        assert (kind, words in said) == ("ConfigError", True)


def test_a_dataset_that_ends_beside_one_that_does_not(told):
    assert [each["a_dataset_without_end_on_one"]["result"] for each in told] == [20, 20]


@pytest.fixture(scope="module")
def bad(folder):
    return [json.loads((folder / f"errors-{index}.json").read_text()) for index in range(2)]


def test_the_loss_for_which_a_training_ends_is_told(bad, folder):
    *_, last = map(TrainingRecord.from_line, (folder / "igfs" / "metrics.jsonl").read_bytes().splitlines())
    assert not math.isfinite(last.values["loss"])


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("not_compiled", "ConfigError", "compile the model before fit"),
        ("misfit", "ValueError", "expected axis -1 of input shape to have value 7"),
        ("diverging", "TrainingDiverged", "A smaller learning rate, clipnorm"),
    ],
)
def test_every_worker_says_what_cannot_go_well(bad, name, kind, words):
    for of_worker in bad:
        assert of_worker[name][0] == kind
        assert words in of_worker[name][1]


def test_fit_of_keras_on_pytorch_is_refused(monkeypatch):
    """The refusal does not depend on the installed parts of PyTorch."""
    module = ModuleType("keras")
    module.backend = SimpleNamespace(backend=lambda: "torch")
    monkeypatch.setitem(sys.modules, "keras", module)
    monkeypatch.setattr(keras_hooks, "_installed", set())
    group = WorkerGroup(Place(addresses=("a:1", "b:1")))
    monkeypatch.setattr(keras_hooks, "worker_group", lambda: group)
    module.Model = type("Model", (), {"fit": lambda self: "fitted"})
    keras_hooks.install_keras()
    with pytest.raises(
        ConfigError, match="Keras uses the backend torch here, .*set KERAS_BACKEND=tensorflow"
    ):
        module.Model().fit()
    with keras_hooks._alone():
        assert module.Model().fit() == "fitted"


@pytest.mark.nightly
def test_another_backend_is_refused(tmp_path):
    """Nightly. Shorter: test_fit_of_keras_on_pytorch_is_refused"""
    Workers(tmp_path, 2, SCRIPT.with_name("plain_on.py")).run(KERAS_BACKEND="jax")
    for index in range(2):
        said = json.loads((tmp_path / f"said-{index}.json").read_text())
        assert "ConfigError: Keras uses the backend jax here" in said["raised"]
