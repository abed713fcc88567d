"""A process ends while rows are being read, however it comes to its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A thread of tf.data is in Python almost always, and the main module holds the iterator to the end.
SCRIPT = """
import sys, time
import numpy as np
import tensorflow as tf
from ignite_tf_magic.dataset.generator import ArrayDataset

def pages():
    while True:
        time.sleep(0.3)
        yield (np.zeros([8, 4], np.float32),)

held = iter(ArrayDataset(pages, (tf.TensorSpec([None, 4], tf.float32),)).prefetch(4))
next(held)
print("reading", flush=True)
"""


@pytest.mark.parametrize(("end", "code"), [("raise ValueError('of the script')", 1), ("sys.exit(3)", 3)])
def test_a_process_ends_while_a_dataset_is_read(end, code):
    """Without what `generator._end_passes` does it waits for ever, each time."""
    command = [sys.executable, "-c", SCRIPT + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "reading\n")
    assert ("ValueError: of the script" in done.stderr) == (code == 1)
