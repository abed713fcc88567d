"""Modules that are executed when they are used, on modules of our own and on TensorFlow's and Keras'."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ignite_tf_magic.runs.deferred_imports import defer_imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose module `late` is deferred; it notes each execution in the package's `executed`."""
    name = "deferring"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(f"executed = []\nfrom {name} import late\n")
    (folder / "late.py").write_text(f"import {name}\n{name}.executed.append(1)\nvalue = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    defer_imports([f"{name}.late"])
    yield name
    for module in [each for each in sys.modules if each.split(".")[0] == name]:
        del sys.modules[module]


def late_of(package: str, source: str) -> ModuleType:
    """Import the package with another source of the module; gives the module, which is not executed yet."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    Path(found.origin).with_name("late.py").write_text(source)
    late: ModuleType = importlib.import_module(f"{package}.late")
    return late


def test_a_module_is_executed_when_it_is_asked_for_something_and_once(package: str) -> None:
    imported = importlib.import_module(package)
    assert imported.late.__name__ == f"{package}.late"
    assert imported.late.__file__.endswith("late.py")
    assert imported.executed == []

    assert imported.late.value == 7
    assert "value" in dir(imported.late)
    assert importlib.import_module(f"{package}.late").value == 7
    assert imported.executed == [1]
    with pytest.raises(AttributeError, match=r"deferring\.late.* has no attribute 'other'"):
        _ = imported.late.other


def test_from_a_module_imports_what_it_has(package: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {package}.late import value", names)
    assert names["value"] == 7


def test_dir_of_a_module_that_was_not_used_yet_is_whole(package: str) -> None:
    assert "value" in dir(importlib.import_module(f"{package}.late"))


def test_an_error_reaches_who_asks_each_time(package: str) -> None:
    late = late_of(package, "raise ImportError('no sklearn here')")
    for _ in range(2):
        with pytest.raises(ImportError, match="no sklearn here"):
            _ = late.value


def test_a_module_that_asks_itself_gets_what_there_is(package: str) -> None:
    asks = "second = late.first + 1\nhas_third = hasattr(late, 'third')\nthird = 3\n"
    late = late_of(package, f"first = 1\nfrom {package} import late\n{asks}")
    assert (late.third, late.second, late.has_third) == (3, 2, False)


def test_other_threads_wait_until_it_is_whole(package: str) -> None:
    late = late_of(package, "import time\ntime.sleep(0.2)\nvalue = 7\n")
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(late.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [7] * 4


def test_tensorflow_and_keras_are_whole_and_bring_less() -> None:
    script = """
import sys
from ignite_tf_magic.runs.deferred_imports import DEFERRED, defer_imports
defer_imports()
import tensorflow as tf, keras
assert not set(DEFERRED) - sys.modules.keys(), set(DEFERRED) - sys.modules.keys()
print(sorted({"sklearn", "matplotlib", "tensorflow.lite.python.lite"} & sys.modules.keys()))
print(tf.lite.TFLiteConverter.__name__, tf.compat.v1.lite.TFLiteConverter.__name__)
print(keras.wrappers.SKLearnClassifier.__name__, tf.keras.wrappers.SKLearnRegressor.__name__)
print(keras.visualization.plot_image_gallery.__name__, tf.keras.visualization.draw_bounding_boxes.__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[]",
        "TFLiteConverterV2 TFLiteConverter",
        "SKLearnClassifier SKLearnRegressor",
        "plot_image_gallery draw_bounding_boxes",
    ]
