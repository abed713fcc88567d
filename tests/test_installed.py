"""Tests of what users install: a wheel built from the sdist, in a separate environment, without extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ignite_tf_magic
from ignite_tf_magic.protocol.messages import CacheConfig
from tests.checkout import copy_checkout

UV = Path(sys.executable).with_name("uv")
# Public names whose import needs TensorFlow.
NEED_TENSORFLOW = ["IgniteDataset", "Loop", "all_rows", "checkpoint", "independent", "strategy"]
pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the paths of its environment are those of POSIX"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory with the sdist and the wheel built from it."""
    copy_checkout(checkout := tmp_path_factory.mktemp("checkout"))
    dist = tmp_path_factory.mktemp("dist")
    # Without options, `build` unpacks its own sdist and builds the wheel from it.
    build = [
        sys.executable,
        "-m",
        "build",
        "--outdir",
        dist,
        checkout,
        *(["--installer", "uv"] if UV.exists() else []),
    ]
    done = subprocess.run(build, cwd=dist, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return dist


@pytest.fixture(scope="module")
def base(built, tmp_path_factory):
    """The directory with the environment's programs."""
    home = tmp_path_factory.mktemp("base") / "env"
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=300)
    python = home / "bin" / "python"
    install = [UV, "pip", "install", "--python", python] if UV.exists() else [python, "-m", "pip", "install"]
    done = subprocess.run(
        [*install, *built.glob("*.whl")], cwd=home, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return home / "bin"


@pytest.fixture
def bare(base, tmp_path):
    """Run programs of that environment, without this project's variables and configuration."""

    def run(program, *words, cluster=None):
        ours = ("IGNITE_", "IGFS_", "PYTHON", "JAVA_HOME", "XDG_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"HOME": str(tmp_path), "PATH": f"{base}:/usr/bin:/bin"}
        if cluster is not None:
            env["IGNITE_TF_CLUSTER"] = ",".join(map(str, cluster.connect_options.endpoints))
        return subprocess.run(
            [base / program, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
        )

    return run


def test_the_sdist_has_what_the_wheel_is_made_of(built):
    assert [path.name.partition("-0")[0] for path in built.glob("*.tar.gz")] == ["ignite_tf_magic"]
    assert len([*built.glob("ignite_tf_magic-*.whl")]) == 1


def test_version_help_and_import_need_no_extra(bare):
    shown = bare("ignite-tf", "--version")
    first, *rest = shown.stdout.splitlines()
    assert (shown.returncode, first) == (0, f"ignite-tf {ignite_tf_magic.__version__}")
    parts = dict(line.split(maxsplit=1) for line in rest)
    assert parts["tensorflow"] == "not installed: pip install 'ignite_tf_magic[tensorflow]'"
    assert {parts[name] for name in ("_rows", "_filesystem", "_loopback")} == {"compiled"}
    for words in (["--help"], ["start", "--help"], ["ps"], ["status"], ["local", "status"]):
        done = bare("ignite-tf", *words)
        assert (done.returncode, done.stderr) == (0, ""), words
    done = bare("python", "-I", "-c", "import ignite_tf_magic; print(ignite_tf_magic.__file__)")
    assert done.stdout.startswith(str(base_of(bare))), done.stderr


def base_of(bare):
    return bare("python", "-I", "-c", "import sys; print(sys.prefix)").stdout.strip()


def test_names_that_need_tensorflow_say_which_extra_brings_it(bare):
    code = """
import ignite_tf_magic
for name in ignite_tf_magic.__all__:
    try:
        getattr(ignite_tf_magic, name)
    except ImportError as error:
        print(name, error)
"""
    done = bare("python", "-I", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{name} No module named 'tensorflow', which ignite_tf_magic.{name} needs: "
        "pip install 'ignite_tf_magic[tensorflow]'"
        for name in NEED_TENSORFLOW
    ]
    assert set(NEED_TENSORFLOW) == ignite_tf_magic._AFTER_TENSORFLOW
    for line, what in (
        ("from ignite_tf_magic.contrib import IgniteDataset", "IgniteDataset"),
        ("import ignite_tf_magic; ignite_tf_magic.register()", "register"),
    ):
        last = bare("python", "-I", "-c", line).stderr.splitlines()[-1]
        assert last.endswith(f"which ignite_tf_magic.{what} needs: pip install 'ignite_tf_magic[tensorflow]'")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("local up", "local"),
        ("caches", "local"),
        ("demo", "all"),
        ("tensorboard", "tensorboard"),
    ],
)
def test_commands_say_which_extra_they_need(bare, words, extra):
    done = bare("ignite-tf", *words.split())
    assert done.returncode == 1
    assert f"ignite_tf_magic[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "downloading" not in done.stderr


@pytest.fixture
def cache(client):
    name = "BASE_INSTALL"
    client.create_cache(CacheConfig(name)).put_all({1: 1.5, 2: 2.5})
    yield name
    client.destroy_cache(name)


def test_with_a_cluster_of_ones_own_frames_and_files_need_an_extra(bare, ignite, cache, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    for words in (
        ["caches"],
        ["columns", cache],
        ["sample", cache, "-n", "1"],
        ["fs", "ls"],
        ["ps"],
    ):
        done = bare("ignite-tf", *words, cluster=ignite)
        assert done.returncode == 0, (words, done.stderr)
    for words, extra in (
        (["sample", cache, "-o", "rows.csv"], "data"),
        (["load", "BASE_LOADED", "digits"], "data"),
        (["load", "BASE_LOADED", "rows.csv"], "data"),
        (["load", "BASE_LOADED", "keras:mnist"], "tensorflow"),
    ):
        done = bare("ignite-tf", *words, cluster=ignite)
        assert done.returncode == 1, (words, done.stdout)
        assert f"pip install 'ignite_tf_magic[{extra}]'" in done.stderr, words
        assert "Traceback" not in done.stderr
