"""Executes every Python example of the documents as cells in a real kernel, grouped into stories."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import load
from tests.notebooks.test_notebooks import NUM_TRAIN, names_of_caches
from tests.ui.notebook.kernels import CellResult, Kernel

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
# Pages whose examples share variables and caches, and cells that create what they need.
STORIES = {
    "readme": ["README.md"],
    "tutorial": ["docs/tutorial.md"],
    "training": ["docs/training.md", "docs/prediction.md"],
    "strategies": ["docs/strategies.md"],
    "data": ["docs/data.md", "docs/igfs.md", "docs/migration.md", "docs/troubleshooting.md"],
}
BEFORE = {
    "docs/data.md": """
import datetime, keras, fsspec, numpy as np, ignite_tf_magic
from datetime import date
largest = 3
days = np.array([date(2026, 1, 1) + datetime.timedelta(days) for days in range(5)], object)
ignite_tf_magic.load("SALES", {"price": np.arange(5.0), "label": np.arange(5), "day": days}, replace=True)
ignite_tf_magic.load("EVENTS", {"x": np.zeros((64_000, 1), np.float32)}, replace=True)
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
features = lambda row: (row["val"]["x"], row["val"]["x"])
with fsspec.open("igfs:///data/train.csv", "w") as file:
    file.write("x,label\\n1,2\\n")
""",
}
# Examples that are part of another cell's script on their page; the value is that cell's number.
PARTS = {("README.md", 3): 2, ("docs/tutorial.md", 6): 3}
# Example of TensorFlow 1 in the migration page, which no longer runs.
PAST = {("docs/migration.md", 0)}
pytestmark = pytest.mark.timeout(1500)


def examples_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def cells_of(page: str) -> dict[int, str]:
    """Return the examples of a page as cells, by number."""
    cells = dict(enumerate(examples_of(page)))
    for (of_page, number), whole in PARTS.items():
        if of_page == page:
            cells[whole] += cells.pop(number)
    return {number: cell for number, cell in cells.items() if (page, number) not in PAST}


@pytest.fixture
def kernel(ignite, no_runs_left, tmp_path):
    """A kernel whose cluster has the README's caches. Removes the caches that the story created."""
    before = names_of_caches(ignite)
    for name, split in (("DIGITS", "train"), ("DIGITS_TEST", "test")):
        load(name, "digits", split=split, replace=True, options=ignite.connect_options, report=str)
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {**os.environ, "IGNITE_TF_HOME": str(tmp_path / "home"), "IGNITE_TF_CLUSTER": endpoints}
    kernel = Kernel(env, tmp_path)
    try:
        kernel.run("%load_ext ignite_tf_magic")
        yield kernel
    finally:
        kernel.close()
        with connect(ignite.connect_options) as client:
            for name in names_of_caches(ignite) - before:
                client.destroy_cache(name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke if name == "readme" else ()) for name in STORIES]
)
def test_examples_of_the_documents_run(name, kernel):
    said: dict[tuple[str, int], CellResult] = {}
    for page in STORIES[name]:
        for number, cell in [(-1, BEFORE.get(page, "")), *cells_of(page).items()]:
            result = kernel.run(cell, timeout_s=600)
            if result.error is not None:
                pytest.fail(f"{page}, example {number}:\n{cell}\n{result.text}\n{result.error['evalue']}")
            said[page, number] = result
    if check := CHECKS.get(name):
        check({at: result.text for at, result in said.items()}, kernel)


def strategies(said, kernel):
    """Check the number that each example prints last."""
    page = "docs/strategies.md"
    steps, total, labels = (
        [int(number) for number in re.findall(r"^(?:\S+ \| *)?(\d+)$", said[page, number], re.MULTILINE)]
        for number in range(3)
    )
    assert steps[-1] >= 3 * -(-NUM_TRAIN // 64)
    assert 1000 * 32 * 3 < total[-1] < 1000 * 32 * 6  # digits from 0 to 9, 4.5 on average
    assert 0 <= labels[-1] <= 18


def tutorial(said, kernel):
    """Its last run is detached."""
    (run,) = re.findall(r"^run ([\w-]+)", said["docs/tutorial.md", 10], re.MULTILINE)[:1]
    attached = kernel.run(f"%ignite_tf attach {run}").text
    assert sorted(re.findall(r"worker (\d) of 3", attached)) == ["0", "1", "2"], attached


def training(said, kernel):
    assert "{'classes': 2}" in kernel.run("print(second.result)").text
    assert "(10,)" in kernel.run("print(net.output_shape[1:])").text
    assert kernel.run("%ignite_tf tensorboard --stop {first.id}").error is None


CHECKS: dict[str, Callable[[dict[tuple[str, int], str], Kernel], None]] = {
    "strategies": strategies,
    "training": training,
    "tutorial": tutorial,
}


def test_every_page_with_examples_is_in_a_story():
    told = [page for pages in STORIES.values() for page in pages]
    assert sorted(told) == sorted(page for page in PAGES if examples_of(page))
