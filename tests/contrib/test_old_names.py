"""Scripts for TensorFlow 1 keep their old imports, in runs that enable them and in any other process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

KITTENS = """
import tensorflow as tf
from tensorflow.contrib.ignite import IgniteDataset
import tensorflow.contrib.ignite.python.ops.igfs_ops

dataset = IgniteDataset(cache_name="KITTENS")
for element in dataset:
    print(element["key"].numpy(), element["val"]["NAME"].numpy())
with tf.io.gfile.GFile("igfs:///hello.txt", mode="w") as w:
    w.write("Hello, world!")
with tf.io.gfile.GFile("igfs:///hello.txt", mode="r") as r:
    print(r.read())
"""
SAID = ["1 b'WARM KITTY'", "2 b'SOFT KITTY'", "3 b'LITTLE BALL OF FUR'", "Hello, world!"]  # sorted


@pytest.fixture
def kittens(session):
    names = np.array(["WARM KITTY", "SOFT KITTY", "LITTLE BALL OF FUR"])
    load("KITTENS", {"id": np.arange(1, 4), "NAME": names}, key="id", replace=True, report=str)
    return "KITTENS"


def said(text):
    return sorted(line for line in text.splitlines() if line in SAID)


def test_a_run_with_compat_imports_the_old_name(session, kittens):
    _, text = succeeded(session, RunRequest(kittens, KITTENS, compat=True))
    assert said(text) == SAID


def test_without_it_there_is_none(session, kittens):
    run = session.start_run(RunRequest(kittens, KITTENS, max_restarts=0))
    text = "".join(chunk.text for chunk in run.follow())
    assert "No module named 'tensorflow.contrib'" in text


def test_one_line_lets_any_process_import_it(ignite, kittens, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    script = "import ignite_tf_magic.contrib; ignite_tf_magic.contrib.install()\n" + KITTENS
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said(done.stdout) == SAID
    same = (
        "from ignite_tf_magic.contrib import IgniteDataset as new, install; install()\n"
        "from tensorflow.contrib.ignite.python.ops.ignite_dataset_ops import IgniteDataset as old\n"
        "assert new is old\nimport tensorflow as tf\nassert tf.data.Dataset.range(1).make_one_shot_iterator()\n"
        "import tensorflow.contrib.learn"
    )
    other = subprocess.run([sys.executable, "-c", same], capture_output=True, text=True, check=False)
    assert "No module named 'tensorflow.contrib.learn'" in other.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "import tensorflow as tf; v1 = tf.compat.v1",
        pytest.param("import tensorflow.compat.v1 as v1", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.nightly
def test_jobs_may_be_in_capitals_and_summaries_have_their_oldest_names(imports):
    """Nightly. No shorter one: no other test uses these names."""
    script = (
        "import ignite_tf_magic.contrib as contrib; contrib.install(); contrib.install()\n"
        f"{imports}\n"
        "import tensorflow as tf\n"
        "found = []\n"
        "with tf.Graph().as_default():\n"
        "    for device in (tf.device, v1.device, tf.compat.v1.device):\n"
        "        for name in ('/job:WORKER/task:1', '/job:PS', '/job:Other/task:0', None):\n"
        "            with device(name):\n"
        "                found.append(tf.constant(1).op.device)\n"
        "    v1.scalar_summary('loss', 1.0)\n"
        "    assert v1.merge_all_summaries().dtype is tf.string\n"
        "print(found)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names = ["/job:worker/task:1", "/job:ps", "/job:Other/task:0", ""]
    assert done.stdout.strip() == str(names * 3)
