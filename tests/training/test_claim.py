"""One process of each worker holds the training lock: real processes and locks, and a stand-in for Keras' Model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ignite_tf_magic.launch.lock import HeldLock

ASK = """
import multiprocessing, os
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.claim import CLAIM, refuse_fit, why_not

class Model:
    is_independent = False
    def fit(self): return "fitted"

def ask():
    if not CLAIM.take():
        refuse_fit(Model, why_not(), lambda: Model.is_independent)
        try:
            Model().fit()
        except ConfigError as error:
            print("out", error, flush=True)
        Model.is_independent = True
        print(Model().fit(), flush=True)
    else:
        print("in", CLAIM.number, flush=True)

if __name__ == "__main__":
    if os.environ.get("IN_CHILD"):
        child = multiprocessing.get_context("spawn").Process(target=ask)
        child.start(); child.join()
    else:
        ask()
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    (tmp_path / "ask.py").write_text(ASK)
    monkeypatch.setenv("IGNITE_TF_CLAIM_FILE", str(tmp_path / "claim"))

    def ask():
        argv = [sys.executable, str(tmp_path / "ask.py")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
        return done.stdout.split("\n")[:-1], done.stderr

    return ask


def test_one_takes_part_while_it_lives_and_they_are_counted(ask, tmp_path):
    assert [ask()[0] for _ in range(3)] == [["in 0"], ["in 1"], ["in 2"]]
    with HeldLock(tmp_path / "claim"):
        (out, fitted), warned = ask()
        assert out.startswith("out process ")
        assert "does not take part for this worker" in out
        assert "put `with ignite_tf_magic.independent():` around fit" in out
        assert (fitted, warned) == ("fitted", "")
    assert ask()[0] == ["in 3"]


def test_a_child_of_multiprocessing_is_refused_when_it_trains(ask, tmp_path, monkeypatch):
    """Until it trains it is not warned, as it may only read data."""
    monkeypatch.setenv("IN_CHILD", "1")
    with HeldLock(tmp_path / "claim"):
        (out, fitted), warned = ask()
    assert ("does not take part for this worker" in out, fitted, warned) == (True, "fitted", "")


def test_outside_of_a_run_every_process_takes_part(ask, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLAIM_FILE", "")
    assert ask()[0] == ["in 0"]
