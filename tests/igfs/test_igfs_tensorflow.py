"""TensorFlow and Keras on igfs: each feature that uses files, in one process, as importing TensorFlow is slow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "tensorflow_checks.py"
CHECKS = re.findall(r"@check\ndef (\w+)", SCRIPT.read_text())


@pytest.fixture(scope="module")
def outcomes(ignite, tmp_path_factory):
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    root = f"igfs://{ignite.connect_options.endpoints[0]}/tensorflow-checks"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), root],
        cwd=tmp_path_factory.mktemp("empty"),
        env={**os.environ, "IGNITE_TF_CLUSTER": endpoints},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(CHECKS), done.stderr[-3000:]
    return {found["name"]: found["error"] for found in map(json.loads, lines)}


@pytest.mark.parametrize("name", CHECKS)
def test_tensorflow(outcomes, name):
    assert outcomes[name] == ""
