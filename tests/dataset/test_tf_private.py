"""The private TensorFlow API is unchanged, and only one module uses it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ignite_tf_magic
from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.runs.deferred_imports import DEFERRED, GUESTS

PACKAGE = Path(ignite_tf_magic.__file__).parent
PRIVATE = re.compile(
    r"tensorflow\.python\.|import tensorflow\.python|\._variant_tensor|\b\w+\._inputs\(|\._set_attr\("
    r"|tf\.__internal__|tensorflow\._api|keras\.src"
)
# These modules only name private modules in strings.
NAMED_ONLY = {
    "runs/deferred_imports.py": "those that are imported later; no TensorFlow is loaded there",
    "training/untrusted_models.py": "where public operations say that they were made",
}


def test_this_tensorflow_has_changed_nothing():
    """It runs in its own process, because it creates operations and seeds."""
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
        ("_EXECUTOR_OF_NEXT", "an_executor", "Executor"),
        ("_lacking", lambda thing, *_: "gone" if "autograph" in repr(thing) else "", "autograph"),
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
    assert found == {"dataset/tf_private.py", *NAMED_ONLY}


def test_those_that_only_name_such_modules_import_none():
    for name in NAMED_ONLY:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [each for each in modules if PRIVATE.search(f"{each}.")], name


@pytest.mark.nightly
def test_modules_that_are_imported_later_are_there():
    """Nightly. Shorter:
    tests/runs/test_deferred_imports.py::test_tensorflow_and_keras_are_whole_and_bring_less
    """
    code = "import importlib.util; print([n for n in {!r} if importlib.util.find_spec(n) is None])"
    done = subprocess.run(
        [sys.executable, "-c", code.format([*DEFERRED, *GUESTS])],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
