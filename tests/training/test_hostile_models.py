"""Anyone with access to an Ignite port can write a model to igfs: loading it must not run code from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("keras", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
def test_what_runs_code_or_reads_files_is_not_loaded(ignite, client, tmp_path, keras):
    script = Path(__file__).with_name("hostile_models.py")
    env = {
        **os.environ,
        "IGNITE_TF_CLUSTER": str(ignite.connect_options.endpoints[0]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    answer = subprocess.run(
        [sys.executable, str(script), keras, str(tmp_path)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    told = json.loads(answer.stdout.splitlines()[-1])
    found = told["found"]
    assert {name: found[name] for name in [*told["harmless"], "given"]} == {
        name: ["loaded", False] for name in [*told["harmless"], "given"]
    }
    for name in told["hostile"]:
        outcome, ran = found[name]
        assert not ran, name
        assert outcome.startswith("ConfigError: "), (name, outcome)
        is_damaged = name in ("legacy", "nothing") or "metadata" in name
        assert is_damaged or "RUN.model(trust=True)" in outcome, (name, outcome)
    assert found["trusted"][1], found["trusted"]  # the attack works on trusted models
