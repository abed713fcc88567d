"""Tests of JAX and PyTorch in runs: examples of docs/training.md give the same result with one and two workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from ignite_tf_magic.session import RunRequest, load
from tests.tfplugin.versions import PACKAGES
from tests.training.processes import ROOT
from tests.training.runs import succeeded

EXAMPLES = ROOT / "docs" / "examples"
# Debian has PyTorch without CUDA for this Python. PyPI's needs 3 GB for CUDA.
DEBIANS_PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module", autouse=True)
def digits(session):
    found = load_digits()
    columns = {"pixels": found.data.astype(np.uint8), "label": found.target.astype(np.int32)}
    load("DIGITS", columns, replace=True, report=str)


@pytest.fixture(scope="module")
def python_with_torch() -> str:
    """An interpreter with PyTorch and the requirements of this package."""
    if subprocess.run([DEBIANS_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip("PyTorch is not there: make torch")
    uv, where = Path(sys.executable).with_name("uv"), ROOT / ".venv" / "versions" / "torch"
    if not (where / "bin/python").exists():
        made = [uv, "venv", "--quiet", "--system-site-packages", "--python", DEBIANS_PYTHON, where]
        subprocess.run(made, check=True)
    # Debian's PyTorch needs NumPy 1.
    wanted = [*(each for each in PACKAGES if each != "numpy"), "numpy>=1.26,<2"]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", where / "bin/python", *wanted], check=True)
    return str(where / "bin/python")


def trained(session, name: str, num_workers: int, python: str | None = None) -> tuple[dict, list[str]]:
    """Run an example with all rows in one batch, so that the result does not depend on which worker reads which row."""
    script = (EXAMPLES / name).read_text(encoding="utf-8").replace('"DIGITS", 256', '"DIGITS", 2000')
    assert '"DIGITS", 2000' in script
    request = RunRequest("DIGITS", script, num_workers=num_workers, python=python, script_name=name)
    run, text = succeeded(session, request)
    return run.result, [line for line in text.splitlines() if line.startswith("epoch")]


def check(session, name: str, python: str | None = None) -> None:
    alone, told = trained(session, name, 1, python)
    together, told_together = trained(session, name, 2, python)
    assert alone.keys() == together.keys()
    for part, value in alone.items():
        np.testing.assert_allclose(value, together[part], rtol=0, atol=1e-5)
    losses = [[float(line.split("loss ")[1].split()[0]) for line in lines] for lines in (told, told_together)]
    assert len(losses[0]) == 5
    assert losses[0] == sorted(losses[0], reverse=True)
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-4)


@pytest.mark.timeout(1200)
def test_jax_needs_no_address(session):
    check(session, "jax_digits.py")


@pytest.mark.timeout(1200)
def test_torch_needs_no_address(session, python_with_torch):
    check(session, "torch_digits.py", python_with_torch)


def test_variables_of_torchrun(session):
    script = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MINE")
print(*(os.environ.get(name) for name in names))
"""
    for num_workers in (1, 2):
        own = {"MINE": "1", "LOCAL_WORLD_SIZE": "7"}
        _, text = succeeded(session, RunRequest("DIGITS", script, num_workers=num_workers, env=own))
        said = sorted(line.split() for line in text.splitlines())
        assert [each[0] for each in said] == [str(rank) for rank in range(num_workers)]
        assert {each[1] for each in said} == {str(num_workers)}
        assert {(each[3], each[6]) for each in said} == {("7", "1")}  # the user's own variables win
        assert len({(each[4], each[5]) for each in said}) == 1
        assert (said[0][5] == "None") == (num_workers == 1)
    assert "RANK" not in os.environ
