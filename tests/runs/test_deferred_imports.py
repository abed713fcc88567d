"""Tests of modules whose execution is deferred until use, on test modules, TensorFlow and Keras."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ignite_tf_magic.runs.deferred_imports import Guest, defer_imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose module `late` is deferred. The package's list `executed` counts executions."""
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
    """Import the package with another source of its module; return the module, which has not been executed yet."""
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


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that tries to import the library `visitor`, and notes what it found."""
    (tmp_path / "visitor.py").write_text("class Frame: ...\nclass Column: ...\nvalue = 7\n")
    source = "try:\n    import visitor\nexcept ImportError:\n    visitor = None\n"
    (tmp_path / "hosting.py").write_text(f"{source}KINDS = (int, *([visitor.Frame] if visitor else []))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield "hosting"
    for name in ("hosting", "visitor", "visited"):
        sys.modules.pop(name, None)


def test_a_library_is_imported_by_who_uses_it_and_its_classes_are_known_then(host: str) -> None:
    defer_imports([], {host: Guest("visitor", ("Frame",))})
    hosting = importlib.import_module(host)
    assert "visitor" not in sys.modules
    assert not isinstance("text", hosting.KINDS)
    assert not issubclass(str, hosting.KINDS)
    visitor = importlib.import_module("visitor")
    assert visitor is not hosting.visitor
    assert isinstance(visitor.Frame(), hosting.KINDS)
    assert issubclass(type("Own", (visitor.Frame,), {}), hosting.KINDS)
    assert not isinstance(visitor.Column(), hosting.KINDS)
    assert isinstance(3, hosting.KINDS)


def test_a_library_is_imported_when_it_is_asked_for_something_else(host: str) -> None:
    defer_imports([], {host: Guest("visitor", ("Frame",))})
    hosting = importlib.import_module(host)
    assert not hasattr(hosting.visitor, "__version__")
    assert "visitor" not in sys.modules
    assert hosting.visitor.value == 7
    assert hosting.visitor.Column is sys.modules["visitor"].Column
    with pytest.raises(AttributeError):
        _ = hosting.visitor.other


def test_a_library_that_was_imported_before_is_no_other(host: str) -> None:
    visitor = importlib.import_module("visitor")
    defer_imports([], {host: Guest("visitor", ("Frame",))})
    assert importlib.import_module(host).visitor is visitor


def test_a_library_that_is_not_installed_is_not_there(host: str, tmp_path: Path) -> None:
    (tmp_path / "visitor.py").unlink()
    defer_imports([], {host: Guest("visitor", ("Frame",))})
    assert importlib.import_module(host).visitor is None


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_library_that_is_for_another_is_there_with_that(
    host: str, tmp_path: Path, is_installed: bool
) -> None:
    if is_installed:
        (tmp_path / "visited.py").write_text("")
    defer_imports([], {host: Guest("visitor", made_for="visited")})
    hosting = importlib.import_module(host)
    assert (hosting.visitor is not None) is is_installed is ("visitor" in sys.modules)
    assert importlib.import_module("visitor").value == 7


def test_a_module_that_fails_leaves_nothing_behind(host: str, tmp_path: Path) -> None:
    (tmp_path / "hosting.py").write_text("import visitor\nraise ValueError('bad')\n")
    defer_imports([], {host: Guest("visitor")})
    with pytest.raises(ValueError, match="bad"):
        importlib.import_module(host)
    assert importlib.import_module("visitor").value == 7


@pytest.mark.nightly
def test_keras_takes_a_frame_as_ever() -> None:
    """The frame comes from a library that Keras did not import itself.

    Nightly. Shorter: test_tensorflow_and_keras_are_whole_and_bring_less
    """
    script = """
import sys
from ignite_tf_magic.runs.deferred_imports import defer_imports
if sys.argv[1] == "deferred":
    defer_imports()
import numpy, keras
from keras.src.trainers.data_adapters import array_slicing
print(sorted({"jax", "pandas", "requests", "IPython"} & sys.modules.keys()), file=sys.stderr)
import pandas
frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0, 1, 1]}, dtype="float64")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
found = model.fit(frame, frame["b"], epochs=2, verbose=0, validation_split=0.4, shuffle=False)
rows = [type(array_slicing.convert_to_sliceable(each)).__name__ for each in (frame, frame["a"])]
print(found.history, rows, keras.callbacks.RemoteMonitor().root)
"""

    def told(how: str) -> tuple[str, bool]:
        argv = [sys.executable, "-c", script, how]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout, "[]" in done.stderr.splitlines()

    deferred, brings_none = told("deferred")
    assert brings_none
    assert told("at once") == (deferred, False)


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
