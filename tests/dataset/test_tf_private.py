"""What is used of TensorFlow beside its public API is there, as it was, and nowhere but in one module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ignite_tf_magic
from ignite_tf_magic.dataset import tf_private

PACKAGE = Path(ignite_tf_magic.__file__).parent
PRIVATE = re.compile(
    r"tensorflow\.python\.\w+ import|import tensorflow\.python|\._variant_tensor|\b\w+\._inputs\(|\._set_attr\("
)


def test_this_tensorflow_has_changed_nothing():
    """In a process of its own: it makes operations, and seeds."""
    code = (
        "import json; from ignite_tf_magic.dataset import tf_private; print(json.dumps(tf_private.changed()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["{}"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("ONE_FOR_ONE", frozenset({"_MapDataset"}), "tf.data"),
        ("ITERATOR_MAKERS", ("_make_iterator",), "tf.compat.v1.data"),
        ("CollectiveAllReduceExtended", Path, "CollectiveAllReduceExtended"),
        ("OwnedIterator", object, "OwnedIterator"),
    ],
)
def test_a_change_is_told_by_name(monkeypatch, name, value, named):
    monkeypatch.setattr(tf_private, name, value)
    assert list(tf_private.changed()) == [named]


def test_no_other_module_uses_such():
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if PRIVATE.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"dataset/tf_private.py"}
