"""Tests of commands other than `python script.py`: their workers train together, or learn that they do not."""

from __future__ import annotations

import sys

import pytest

from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session.run_plans import _AFTER_IMPORT
from tests.runs.light_runs import text_of

pytest.importorskip("tensorflow")

# Workers start with different weights and read the same rows. Only training together gives equal weights.
TRAIN = """
import json, os, sys
os.environ["IGNITE_TF_RUN_URI"] = os.environ["STORE"]
sys.modules.update(dict.fromkeys(("pandas", "scipy", "sklearn")))
import keras, numpy as np

def main():
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    keras.utils.set_random_seed(index)
    random = np.random.default_rng(1)
    x = random.normal(size=(80, 4)).astype(np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x.sum(axis=1), batch_size=20, shuffle=False, verbose=0)
    print("weights", *(f"{value:.6f}" for value in model.get_weights()[0].ravel()), flush=True)

if __name__ == "__main__":
    main()
"""
CONSOLE = f"#!{sys.executable}\nfrom train import main\nmain()\n"
BY_WORKER = 'case "$TF_CONFIG" in *\'"index": 0\'*) {} ;; *) {} ;; esac\n'
SHELL = "set -e\n" + BY_WORKER.format("env X=1 ./my-train", f"{sys.executable} -m train")
IN_TURN = f"{sys.executable} train.py\n{sys.executable} train.py &\n" + BY_WORKER.format(
    f"{sys.executable} train.py &", ""
)
DEAF = BY_WORKER.format(f"PYTHONPATH=. {sys.executable} train.py", f"{sys.executable} -I train.py")
IN_FRONT = (
    f"mkdir front\ntouch front/sitecustomize.py\nPYTHONPATH=$PWD/front:$PYTHONPATH {sys.executable} train.py"
)
BEHIND = (
    "mkdir behind\necho 'print(\"of the user\")' > behind/sitecustomize.py\n"
    f"PYTHONPATH=$PYTHONPATH:$PWD/behind {sys.executable} train.py"
)


@pytest.fixture
def run_of(start, work_dir, tmp_path):
    """Run a command on two workers, in a directory with programs; return the run and each worker's output."""
    (work_dir / "train.py").write_text(TRAIN)
    console = work_dir / "my-train"
    console.write_text(CONSOLE)
    console.chmod(0o700)

    def run_of(command, shell="", state=RunState.SUCCEEDED):
        (work_dir / "train.sh").write_text(shell)
        store = tmp_path / "store"
        store.mkdir()
        run = start(
            None,
            2,
            command=tuple(command),
            after_import=_AFTER_IMPORT,
            environment={"STORE": str(store), "CUDA_VISIBLE_DEVICES": "-1"},
        )
        info = run.wait(300)
        texts = [text_of(run, worker) for worker in range(2)]
        assert info.state is state, texts
        return texts

    return run_of


def weights_in(text):
    return [line for line in text.splitlines() if line.startswith("weights")]


@pytest.mark.parametrize(
    ("command", "shell"),
    [
        ((sys.executable, "train.py"), ""),
        pytest.param(("bash", "train.sh"), SHELL, marks=pytest.mark.nightly),
    ],
    ids=["interpreter", "shell-console-module"],
)
def test_workers_train_together(run_of, command, shell):
    texts = run_of(command, shell)
    first, second = map(weights_in, texts)
    assert len(first) == 1
    assert first == second
    assert "alone" not in "".join(texts)


@pytest.mark.nightly
def test_one_program_of_a_shell_script_takes_part_at_a_time(run_of):
    """Two programs run one after the other. If both run at once, `fit` of one is refused. Each has its own training.

    Nightly. Shorter: tests/training/test_claim.py::test_one_takes_part_while_it_lives_and_they_are_counted
    """
    texts = run_of(("bash", "train.sh"), f"{IN_TURN}wait\n")
    assert [text.count("does not take part for this worker") for text in texts] == [1, 0]
    first, second = map(weights_in, texts)
    assert (len(first), len(second)) == (2, 2)
    assert first == second
    assert second[0] == second[1]  # it started anew, and did not resume from the first program's checkpoint


@pytest.mark.nightly
@pytest.mark.parametrize("shell", [DEAF, IN_FRONT], ids=["deaf", "another-sitecustomize-in-front"])
def test_workers_that_train_alone_unasked_fail(run_of, shell):
    """Nightly. Shorter: tests/runs/test_site_hook.py::test_the_call_follows_the_import_however_python_was_started"""
    texts = run_of(("bash", "train.sh"), shell, RunState.FAILED)
    assert any("this worker fails, because none of its processes joined the run" in text for text in texts), (
        texts
    )
    for text in texts:
        assert "its interpreter does not know this run" in text or "terminated" in text, text


@pytest.mark.nightly
def test_a_sitecustomize_of_the_users_is_run_as_well(run_of):
    """Nightly. Shorter: tests/runs/test_site_hook.py::test_the_sitecustomize_that_it_hides_is_run"""
    first, second = run_of(("bash", "train.sh"), BEHIND)
    assert weights_in(first) == weights_in(second)
    assert "of the user" in first
