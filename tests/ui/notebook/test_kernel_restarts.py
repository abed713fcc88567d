"""Test of a kernel restart in the middle of a fit; `python -m benchmarks.kernel_restarts` runs many, and kills."""

from __future__ import annotations

import os
import random

import pytest

from benchmarks.kernel_restarts import CACHE, RESTARTED, STUCK, play, summary
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import load


@pytest.mark.parametrize("kind", [RESTARTED, STUCK])
def test_a_run_goes_on_in_a_new_kernel_to_the_exact_step(ignite, tmp_path, kind):
    load(CACHE, "digits", split="test", options=ignite.connect_options, replace=True, report=str)
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {**os.environ, "IGNITE_TF_HOME": str(tmp_path / "home"), "IGNITE_TF_CLUSTER": endpoints}
    played = play(0, env, tmp_path, random.Random(3), kind)
    assert played.is_good, played
    [row] = summary([played])
    assert (row["case"], row["rounds"], row["good"], row["exact_steps"]) == (kind, 1, 1, 1)
    with connect(ignite.connect_options) as client:
        client.destroy_cache(CACHE)
