"""Tests of `after_import`, which calls a function as soon as a module is imported."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from ignite_tf_magic.after_import import after_import, call_named

CALLED: list[str] = []


def note() -> None:
    CALLED.append("noted")


@pytest.fixture
def new_module(tmp_path, monkeypatch):
    CALLED.clear()
    (tmp_path / "imported_later.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "imported_later"
    sys.modules.pop("imported_later", None)


def test_it_is_called_once_and_after_the_module_is_whole(new_module):
    seen = []
    finders = [*sys.meta_path]
    after_import(new_module, lambda: seen.append(sys.modules[new_module].VALUE))
    assert seen == []
    for _ in range(2):
        module = __import__(new_module)
    assert seen == [7]
    assert type(module.__loader__).__module__.startswith("_frozen_importlib")
    assert sys.meta_path == finders


def test_to_look_for_a_module_is_not_to_import_it(new_module):
    """TensorFlow checks whether Keras is installed before it imports Keras."""
    seen = []
    after_import(new_module, lambda: seen.append("imported"))
    assert importlib.util.find_spec(new_module) is not None
    assert seen == []
    __import__(new_module)
    assert seen == ["imported"]


def test_it_is_called_at_once_when_the_module_is_there():
    seen = []
    after_import("sys", lambda: seen.append(1))
    assert seen == [1]


def test_a_module_that_is_not_there_is_still_not_there():
    CALLED.clear()
    after_import("no_such_module_at_all", note)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_at_all")
    assert not CALLED


def test_two_wait_for_one_module(new_module):
    seen = []
    after_import(new_module, lambda: seen.append("first"))
    after_import(new_module, lambda: seen.append("second"))
    __import__(new_module)
    assert sorted(seen) == ["first", "second"]


def test_a_function_by_name():
    CALLED.clear()
    call_named(f"{__name__}:note")
    assert CALLED == ["noted"]


def test_an_error_that_tensorflow_passes_over_is_another_one(new_module):
    """TensorFlow imports Keras in a `try` that catches ImportError and AttributeError. This error must be neither."""
    after_import(new_module, lambda: call_named(f"{__name__}:no_such_function"))
    with pytest.raises(RuntimeError, match=rf"import of {new_module} failed.*no_such_function"):
        __import__(new_module)
