"""Tests of the results of each notebook. The demo's test (tests/ui/shell/test_cli.py) covers the quick start."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from ignite_tf_magic.errors import CacheNotFound
from ignite_tf_magic.session import open_session
from ignite_tf_magic.ui.notebook.arguments import parse_line
from tests.notebooks.executing import NOTEBOOKS, execute, placed_rows, rows_of_mine

QUICKSTART = "quickstart.ipynb"
README = NOTEBOOKS.parent / "README.md"
NUM_TRAIN, NUM_TEST = 1438, 359  # rows of the digits
# Caches that notebooks leave for each other.
SHARED = ["DIGITS", "DIGITS_TEST"]


@pytest.fixture(scope="module", autouse=True)
def caches(ignite) -> Iterator[None]:
    """Let the notebooks create their caches; remove shared ones before and after the tests."""

    def remove() -> None:
        with open_session(ignite.connect_options, report=str) as session:
            session.query("DROP TABLE IF EXISTS KITTEN_CACHE")
            for name in SHARED:
                with suppress(CacheNotFound):
                    session.client.destroy_cache(name)

    remove()
    yield
    remove()


@pytest.fixture
def environment(ignite, no_runs_left, tmp_path) -> dict[str, str]:
    """The environment of a user whose configured cluster is the shared one."""
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    return {**os.environ, "IGNITE_TF_HOME": str(tmp_path / "home"), "IGNITE_TF_CLUSTER": endpoints}


def names_of_caches(ignite) -> set[str]:
    with open_session(ignite.connect_options, report=str) as session:
        return {cache.name for cache in session.caches()}


def number(pattern: str, text: str) -> float:
    """Return the number in the only match of a pattern."""
    (found,) = re.findall(pattern, text)
    return float(found.replace(",", ""))


def kittens(said: dict[str, str]) -> None:
    names = re.findall(r"'NAME': b'([A-Z ]+)'", said["dataset"])
    assert sorted(names) == ["LITTLE BALL OF FUR", "SOFT KITTY", "WARM KITTY"]
    assert "597 rows changed" in said["insert"]
    assert "epoch 25/25, step 150" in said["train"]  # all 600 rows, 100 per step
    assert number(r"weighs (\d+) g", said["weights"]) == pytest.approx(100, abs=10)
    assert number(r"gains (\d+) g", said["weights"]) == pytest.approx(100, abs=3)


def your_own_data(said: dict[str, str]) -> None:
    assert "90 rows in cache IRISES" in said["load-csv"]
    assert "30 rows" in said["load-frame"]
    assert re.search(r"petal_length .*120", said["columns"])
    assert "118 rows in cache IRISES_READY" in said["load-table"]
    assert number(r"(\d+) of 30 are right", said["right"]) >= 27


def sync_and_async(said: dict[str, str]) -> None:
    together, apart = said["tasks"].splitlines()
    steps = -(-NUM_TRAIN // 64) * 6
    assert together == f"sync   worker 0, worker 1:  {steps} steps"
    assert apart in [
        f"async  worker 0, worker 1, ps 0, chief:  {number} steps" for number in (steps, steps + 6)
    ]
    accuracies = [float(each) for each in re.findall(r"val_accuracy: (\S+)", said["start-sync"])]
    assert len(accuracies) == 6 and accuracies[-1] > 0.8
    assert float(re.findall(r"val_accuracy: (\S+)", said["start-async"])[-1]) > 0.8


def in_graph_gradients(said: dict[str, str]) -> None:
    first, second = map(int, re.search(r"rows of each worker: (\d+) (\d+)", said["start-in-graph"]).groups())
    assert min(first, second) > 0 and first + second == NUM_TRAIN
    assert number(r"differ by (\S+) at most", said["compare"]) < 1e-4
    assert number(r"largest is (\S+)", said["compare"]) > 0.1
    assert number(r"(\S+)% of 359", said["accuracy"]) > 80


def checkpoints_and_tensorboard(said: dict[str, str]) -> None:
    assert "stopped" in said["wait-and-stop"]
    for name in ("best.keras", "events/train", "training/fit-0/step-"):
        assert name in said["wait-and-stop"]
    assert "succeeded" in said["resume"]
    assert "20 epochs, each once: True" in said["one-line"]
    assert number(r"accuracy of the best: (\S+)", said["load-best"]) > 0.8
    assert "TensorBoard: http://localhost:" in said["open"]
    assert "stopped the TensorBoard" in said["stop-it"]


def faults(said: dict[str, str]) -> None:
    victim = int(number(r"killed process (\d+)", said["kill"]))
    assert len(set(re.findall(r"process (\d+)", said["attach"]))) == 4 and str(victim) in said["attach"]
    assert "started again (1): worker 1" in said["attach"]
    assert "succeeded, started again 1 time" in said["check"]
    assert f"15 epochs, {15 * -(-NUM_TRAIN // 128)} steps" in said["check"]
    assert number(r"accuracy (\S+)", said["check"]) > 0.8


def your_own_cluster(said: dict[str, str]) -> None:
    """Without a configured cluster, everything runs here. For real hosts see tests/ssh/test_ssh_notebook.py."""
    assert "no ignite-tf.toml" in said["settings"]
    found = placed_rows(said["where"])
    assert [host for host, _, _ in found] == ["localhost", "localhost"]
    assert sorted(rows_of_mine(said["attach"])) == sorted(rows for _, rows, _ in found)
    assert sum(rows for _, rows, _ in found) == NUM_TRAIN + NUM_TEST
    assert said["attach"].partition("RUN")[2].count("succeeded") == 2


def predict_and_write_back(said: dict[str, str]) -> None:
    assert f"{NUM_TEST} rows" in said["predict"]
    by_digit = [line.split()[1:4] for line in said["by-digit"].splitlines()[1:11]]
    assert [int(label) for label, _, _ in by_digit] == list(range(10))
    num_right = sum(int(right) for _, _, right in by_digit)
    assert sum(int(images) for _, images, _ in by_digit) == NUM_TEST
    assert num_right > 0.8 * NUM_TEST
    assert f"{NUM_TEST - num_right} of {NUM_TEST} are wrong" in said["draw"]


def migrate(said: dict[str, str]) -> None:
    assert number(r"worker 0 \| accuracy (\S+)", said["tensorflow-io"]) > 0.8
    assert f"2 files of {NUM_TEST} predictions" in said["spark-files"]
    assert number(r"predictions, (\S+) of them right", said["spark-files"]) > 0.8
    assert said["hello"].strip() == f"Hello, {NUM_TRAIN} digits!"


CHECKS: dict[str, Callable[[dict[str, str]], None]] = {
    f"{check.__name__}.ipynb": check
    for check in (
        kittens,
        your_own_data,
        sync_and_async,
        in_graph_gradients,
        checkpoints_and_tensorboard,
        faults,
        your_own_cluster,
        predict_and_write_back,
        migrate,
    )
}


# Notebooks that `make test` executes. Tests of documents and runs cover the others.
QUICK = ["kittens.ipynb", "your_own_data.ipynb"]


@pytest.mark.parametrize("name", QUICK)
def test_a_short_notebook_comes_to_what_it_says(name, ignite, environment, tmp_path):
    check(name, ignite, environment, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in QUICK])
def test_a_notebook_comes_to_what_it_says(name, ignite, environment, tmp_path):
    """Nightly. Shorter: tests/notebooks/test_documents.py::test_examples_of_the_documents_run"""
    check(name, ignite, environment, tmp_path)


def check(name: str, ignite, environment, tmp_path) -> None:
    before = names_of_caches(ignite)
    CHECKS[name](execute(name, tmp_path, environment))
    assert names_of_caches(ignite) - before <= set(SHARED)


@pytest.mark.parametrize("name", [*CHECKS, QUICKSTART])
def test_each_cell_of_a_notebook_is_python_and_commands_that_can_be_read(name):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    num_commands = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        first, _, rest = cell.source.partition("\n")
        code = rest if first.startswith("%%ignite_tf") else "" if first.startswith("%%") else cell.source
        compile(TransformerManager().transform_cell(code), f"{name}, {cell.id}", "exec")
        for line in re.findall(r"^%%?ignite_tf (.*)", cell.source, re.MULTILINE):
            assert parse_line(line) is not None
            num_commands += 1
    assert num_commands > 0


def test_each_notebook_is_executed_by_a_test_and_listed():
    names = {path.name for path in NOTEBOOKS.glob("*.ipynb")}
    assert names == {*CHECKS, QUICKSTART}
    readme = README.read_text(encoding="utf-8")
    assert [name for name in sorted(names) if f"(notebooks/{name})" not in readme] == []


@pytest.mark.parametrize("name", CHECKS)
def test_a_notebook_is_kept_without_what_it_came_to(name):
    model = json.loads((NOTEBOOKS / QUICKSTART).read_text(encoding="utf-8"))
    notebook = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    same = ("metadata", "nbformat", "nbformat_minor")
    assert {key: notebook[key] for key in same} == {key: model[key] for key in same}
    assert 8 <= len(notebook["cells"]) <= 17
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None and cell["metadata"] == {}
