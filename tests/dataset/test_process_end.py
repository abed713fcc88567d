"""A process can end in any way while rows are being read."""

from __future__ import annotations

import subprocess
import sys

import pytest

# tf.data's thread is almost always in Python code, and the main module holds the iterator until the exit.
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
    """Without `generator._end_passes` the process would always hang."""
    command = [sys.executable, "-c", SCRIPT + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "reading\n")
    assert ("ValueError: of the script" in done.stderr) == (code == 1)
