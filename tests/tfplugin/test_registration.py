"""Schemes are registered once per process, from any thread and in repeated calls."""

from __future__ import annotations

import gc
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from ignite_tf_magic.errors import PluginUnavailable
from ignite_tf_magic.tfplugin import registration
from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree

ROOT = Path(__file__).parents[2]


def test_a_second_registration_replaces_the_handler_and_leaves_open_files(mem):
    tf.io.write_file("mem:///f", b"old")
    reader = tf.io.gfile.GFile("mem:///f", "rb")
    writer = tf.io.gfile.GFile("mem:///w", "wb")
    assert reader.read(1) == b"o"
    writer.write(b"1")
    newer = MemoryTree()
    register_schemes({"mem": newer})
    assert not tf.io.gfile.exists("mem:///f")
    reader.seek(0)
    assert reader.read(3) == b"old"
    writer.write(b"2")
    writer.close()
    assert bytes(mem.files["mem:///w"].data) == b"12"
    assert newer.files == {}


def load_again(name: str, library: Path | None = None):
    """Execute registration.py again, like a reload or another copy of the package."""
    spec = importlib.util.spec_from_file_location(name, registration.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if library is not None:
        module._library_path = lambda: library
    return module


def test_a_reloaded_module_takes_over_and_open_files_survive_it(mem):
    tf.io.write_file("mem:///f", b"1")
    first_tree, second_tree = MemoryTree(), MemoryTree()
    first = load_again("first_again")
    first.register_schemes({"mem": first_tree})
    writer = tf.io.gfile.GFile("mem:///w", "w")
    writer.write("kept")
    del first
    second = load_again("second_again")
    second.register_schemes({"mem": second_tree})
    gc.collect()  # C holds the callbacks of the first module
    writer.write(" open")
    writer.close()
    assert bytes(first_tree.files["mem:///w"].data) == b"kept open"
    tf.io.write_file("mem:///f", b"2")
    assert list(second_tree.files) == ["mem:///f"]
    register_schemes({"mem": mem})
    assert tf.io.read_file("mem:///f").numpy() == b"1"


def test_a_scheme_that_another_copy_of_the_library_registered_is_ours(mem, tmp_path):
    other_file = tmp_path / "_filesystem.so"
    shutil.copy(registration._library_path(), other_file)
    other = load_again("other_copy", other_file)
    theirs, ours = MemoryTree(), MemoryTree()
    other.register_schemes({"mem.copy": theirs})
    tf.io.write_file("mem.copy:///f", b"theirs")
    register_schemes({"mem.copy": ours, "mem": mem})
    assert not tf.io.gfile.exists("mem.copy:///f")
    tf.io.write_file("mem.copy:///f", b"ours")
    tf.io.write_file("mem:///f", b"ours")
    assert [bytes(tree.files["mem.copy:///f"].data) for tree in (theirs, ours)] == [b"theirs", b"ours"]


def test_a_scheme_of_somebody_else_is_refused(mem):
    """TensorFlow itself registers ram://."""
    with pytest.raises(PluginUnavailable, match="another file system serves ram:// in this process"):
        register_schemes({"ram": mem})


@pytest.mark.parametrize("scheme", ["", "x", "9p", "a b", "IGFS", "x" * 40, "a/b"])
def test_a_scheme_that_tensorflow_would_never_ask_for(mem, scheme):
    with pytest.raises(ValueError, match="is not a valid URI scheme"):
        register_schemes({scheme: mem})


def test_without_the_compiled_part_the_error_says_what_to_do(mem, monkeypatch):
    monkeypatch.setattr(registration, "EXTENSION_SUFFIXES", [])
    register_schemes({"mem": mem})  # already registered: nothing is loaded
    with pytest.raises(PluginUnavailable, match="install one .*pip install --force-reinstall"):
        register_schemes({"mem.unbuilt": mem})


def test_a_stale_build_is_told(mem, monkeypatch):
    monkeypatch.setattr(registration, "ABI", 99)
    with pytest.raises(PluginUnavailable, match="was built for another version"):
        register_schemes({"mem": mem})


@pytest.mark.nightly
def test_first_registration_from_many_threads_and_use_after_fork():
    """The first registration happens once, in a process of its own.

    Nightly. No shorter one: the first registration needs a new process, which imports TensorFlow.
    """
    command = [sys.executable, "-m", "tests.tfplugin.threads_and_fork"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "served": [f"mem:///{i}" for i in range(8)],
        "child": "written by the child",
        "registered_in_child": "mem.child",
        "child_exit_code": 0,
        "parent": "still here",
    }
