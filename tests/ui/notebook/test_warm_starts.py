"""Tests that a second start in a notebook is warm: hosts keep processes ready since the first start."""

from __future__ import annotations

import json
import os

import psutil
import pytest

from tests.ui.notebook.kernels import CellResult, Kernel
from tests.waiting import until

PARKED = "ignite_tf_magic.runs.parked"
# Trains one step with all workers, and reports whether its process existed before the run.
SCRIPT = """
import sys
import keras
import tensorflow as tf
import ignite_tf_magic

scaled = lambda row: (tf.cast(row["val"]["pixels"], tf.float32), row["val"]["label"])
rows = ignite_tf_magic.IgniteDataset(CACHE).map(scaled)
model = keras.Sequential([keras.layers.Dense(10, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(rows.batch(256), epochs=1, verbose=0)
is_warm = "runs.parked" in open("/proc/self/cmdline").read()
ignite_tf_magic.result({"is_warm": is_warm, "argv": sys.argv[1:], "main": __name__})
"""


@pytest.fixture
def kernel(ignite, tmp_path):
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    own = {"IGNITE_TF_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    env = {**os.environ, **own, "IGNITE_TF_CLUSTER": endpoints}
    started = Kernel(env, tmp_path)
    try:
        assert started.run("%load_ext ignite_tf_magic") == CellResult()
        yield started
    finally:
        started.close()


def parked(home) -> list[int]:
    found = []
    for each in psutil.process_iter(["cmdline", "environ"]):
        is_of_this_home = (each.info["environ"] or {}).get("IGNITE_TF_HOME") == str(home)
        if is_of_this_home and PARKED in (each.info["cmdline"] or ()):
            found.append(each.pid)
    return found


def trained(kernel, digits: str, script: str = SCRIPT) -> dict[str, object]:
    kernel.run(f"CACHE = {digits!r}")
    cell = kernel.run(
        f"%%ignite_tf start {digits} --workers 2 -o done --no-chart --push CACHE -- a b\n{script}"
    )
    assert cell.error is None, cell
    return json.loads(kernel.run("import json; print(json.dumps(done.result))").stdout)


@pytest.mark.nightly
def test_the_second_start_is_warm_and_nothing_stays_when_the_kernel_ends(kernel, digits, tmp_path):
    """Nightly. Shorter:
    tests/runs/supervision/test_warm_hosts.py::test_the_second_run_is_warm_and_its_scripts_see_nothing_of_it
    """
    home = tmp_path / "home"
    first = trained(kernel, digits)
    assert first.pop("is_warm") is False
    until(lambda: len(parked(home)) == 2, what=lambda: parked(home))
    waiting = set(parked(home))
    second = trained(kernel, digits)
    assert second.pop("is_warm") is True
    assert first == second == {"argv": ["a", "b"], "main": "__main__"}
    # The second run used up the parked processes. New ones take their place.
    until(lambda: len(waiting.symmetric_difference(parked(home))) == 4, what=lambda: parked(home))
    kernel.close()
    until(lambda: not parked(home), what=lambda: parked(home))


@pytest.mark.nightly
def test_a_script_that_sets_variables_starts_cold_and_a_configuration_can_say_so_for_all(
    kernel, digits, tmp_path
):
    """Nightly. Shorter:
    tests/runs/test_warm.py::test_a_script_starts_warm_when_it_imports_tensorflow_and_nothing_comes_before
    """
    home = tmp_path / "home"
    trained(kernel, digits)
    until(lambda: len(parked(home)) == 2, what=lambda: parked(home))
    script = f"import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\n{SCRIPT}"
    assert trained(kernel, digits, script)["is_warm"] is False
    (tmp_path / "ignite-tf.toml").write_text("[launch]\nwarm_s = 0\n")
    assert trained(kernel, digits)["is_warm"] is False
