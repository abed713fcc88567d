"""Other versions of TensorFlow and Keras than those of the tests, each in a virtual environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.tfplugin.versions import KERAS, PACKAGES, venv
from tests.training.migrations import FOLDER
from tests.training.processes import ROOT, Workers, compare, run_cases
from tests.training.runs import succeeded

OLDEST, OF_ESTIMATORS = "2.16", "2.15"
CASES = ("dense", "synchronised_batch_normalization", "own_train_step", "unbuilt_sequential")
PLAIN = Path(__file__).with_name("plain_on.py")

pytestmark = pytest.mark.nightly  # each version is a separate environment of 1 GB


def python_with(version: str, *packages: str) -> str:
    """Return the interpreter of an environment; making a missing one takes half a minute."""
    uv = str(Path(sys.executable).with_name("uv"))
    wanted = (f"tf_keras=={version}.*", *PACKAGES, *packages)
    return str(venv(ROOT / ".venv" / "versions", f"{version}.*", uv, wanted))


@pytest.fixture(scope="module")
def oldest():
    return python_with(OLDEST, KERAS)


@pytest.fixture(scope="module")
def of_estimators():
    return python_with(OF_ESTIMATORS)


@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_two_workers_with_the_oldest_tensorflow(oldest, framework, tmp_path):
    """Nightly. No shorter one: another TensorFlow is an environment of its own, of 1 GB."""
    for name in ("alone", "together"):
        run_cases(framework, 2, CASES, tmp_path / name, together=name == "together", python=oldest)
    for case in CASES:
        found = compare(case, tmp_path / "alone", tmp_path / "together", 2)
        assert found.identical, case
        assert found.largest < 1e-5, (case, found.differences)


def test_estimators_on_two_workers(of_estimators, session):
    """Nightly. No shorter one: another TensorFlow is an environment of its own, of 1 GB."""
    x = np.random.default_rng(1).normal(size=(1000, 16)).astype(np.float32)
    load("POINTS", {"x": x, "label": (x.sum(axis=1) > 0).astype(np.int32)}, replace=True, report=str)
    source = (FOLDER / "estimator.py").read_text(encoding="utf-8")
    request = RunRequest("POINTS", source, num_workers=2, script_name="estimator", python=of_estimators)
    run, _ = succeeded(session, request)
    assert run.result["global_step"] == 40
    assert run.result["accuracy"] > 0.9
    files = fsspec.filesystem("igfs").ls(f"igfs:///runs/{run.id}/estimator", detail=False)
    assert any(path.endswith("model.ckpt-40.index") for path in files)


def test_keras_that_is_too_old_trains_alone_only(of_estimators, tmp_path):
    """Nightly. No shorter one: another TensorFlow is an environment of its own, of 1 GB."""
    for num_workers in (1, 2):
        Workers(tmp_path, num_workers, PLAIN, python=of_estimators).run()
        said = [json.loads((tmp_path / f"said-{index}.json").read_text()) for index in range(num_workers)]
        if num_workers == 1:
            assert said[0]["raised"] is None
            assert any("is older than 3.12: it trains as usual" in each for each in said[0]["warned"])
        else:
            assert all("is too old to train on several workers" in each["raised"] for each in said)


def test_workers_with_different_versions_are_told(oldest, tmp_path):
    """Nightly. No shorter one: another TensorFlow is an environment of its own, of 1 GB."""
    Workers(tmp_path, 2, PLAIN, python=(sys.executable, oldest)).run()
    for index in range(2):
        raised = json.loads((tmp_path / f"said-{index}.json").read_text())["raised"]
        assert "different versions of TensorFlow: 2." in raised, raised
        assert "on worker 0" in raised and f"{OLDEST}." in raised, raised
