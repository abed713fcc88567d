"""Keras is hooked whichever name of this package a script imports first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOKED = """
import as_worker
from ignite_tf_magic import {name}
import keras
print(keras.Model.fit.__code__.co_filename, {name}.__module__)
"""


def printed(source: str) -> str:
    """Return the output of a process that can import the scripts beside this file."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", source], env=env, text=True, check=True, capture_output=True
    ).stdout


@pytest.mark.parametrize(
    "name",
    [
        "independent",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("all_rows", "strategy", "IgniteDataset")
        ),
    ],
)
def test_fit_is_that_of_all_workers_when_a_name_of_ours_comes_before_keras(name):
    """Nightly with further names. Shorter: with one. TensorFlow passes over a hook that cannot be imported.

    A function sent to workers refers to the name as an attribute of the package, which must therefore have it.
    """
    file, module = printed(HOOKED.format(name=name)).split()
    assert file.endswith("keras_hooks.py")
    assert module == "ignite_tf_magic"
