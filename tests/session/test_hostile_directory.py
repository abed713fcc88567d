"""Tests that processes of this package import no module from the working directory, where others may have left some."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.igfs.mount import is_mounted
from ignite_tf_magic.launch.spawner import own_python
from ignite_tf_magic.runs.environments.environments import prepare_environments
from ignite_tf_magic.runs.environments.requirements import read_requirements
from ignite_tf_magic.runs.environments.wheels import Supplies
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.session import open_session
from ignite_tf_magic.session.files import unmount
from ignite_tf_magic.session.tensorboards import open_tensorboard, stop_tensorboard
from ignite_tf_magic.ui.shell.cli import main
from tests.bed.little_wheels import make_index
from tests.runs.pipe_hosts import PipeReach

CACHE = "IN_A_HOSTILE_DIRECTORY"
OTHERS = ("fsspec", "ignite_tf_magic", "numpy", "pip", "sitecustomize", "tensorboard", "usercustomize")


@pytest.fixture
def hits(tmp_path, monkeypatch):
    """The directory in which each module of the working directory notes that it was imported."""
    work, hits = tmp_path / "work", tmp_path / "hits"
    work.mkdir()
    hits.mkdir()
    for name in sorted({*sys.stdlib_module_names, *OTHERS} - set(sys.builtin_module_names)):
        note = f"open({str(hits)!r} + '/' + __name__, 'w').close()\nraise ImportError('hostile')\n"
        (work / f"{name}.py").write_text(note)
    monkeypatch.chdir(work)
    return hits


@pytest.fixture(autouse=True)
def home(tmp_path, ignite, monkeypatch):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("IGNITE_TF_HOME", str(home))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PYTHONPATH", "")
    return home


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "elsewhere" / "train.py"
    path.parent.mkdir()
    path.write_text("print('trained')\n")
    return path


@pytest.fixture
def rows(home):
    with open_session(report=print) as session:
        session.load(CACHE, {"x": np.arange(9)}, replace=True)
        yield
        session.client.destroy_cache(CACHE)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_modules_are_hostile(hits):
    subprocess.run([sys.executable, "-c", "import json"], check=False, capture_output=True)
    assert "json" in names_in(hits)


def test_the_doctor(hits, rows):
    main(["doctor", CACHE])
    assert names_in(hits) == []


@pytest.mark.parametrize("builder", ["uv", "pip"])
@pytest.mark.nightly
def test_environments_of_workers(hits, home, tmp_path, monkeypatch, builder):
    """Nightly. Shorter:
    tests/test_architecture.py::test_pythons_of_ours_import_nothing_from_where_somebody_works
    """
    if builder == "pip":
        broken = make_folder(tmp_path / "bin") / "uv"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setenv("PATH", str(broken.parent), prepend=":")
    asked = tmp_path / "asked.txt"
    asked.write_text("little\n")
    requirements = read_requirements(asked, make_index(tmp_path / "index", little=""))
    said = []
    here = HostRecord("here", python=sys.executable)
    [ready] = prepare_environments([here], requirements, PipeReach(home), said.append)
    assert (Path(ready.environment) / "bin/tell-little").exists()
    assert f"with {builder}" in said[0]
    assert names_in(hits) == []


def test_a_detached_start(hits, rows, script, capsys):
    assert main(["start", CACHE, "--script", str(script), "--detach"]) == 0
    assert main(["attach", capsys.readouterr().out.split()[0]]) == 0
    assert names_in(hits) == []


@pytest.mark.nightly
def test_wheels_that_are_fetched_here(hits, tmp_path, monkeypatch):
    """Nightly. Shorter: test_a_module_of_ours_finds_what_this_process_finds"""
    index = make_index(tmp_path / "index", little="")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    host = {"platform": "linux-x86_64", "version": list(sys.version_info[:2]), "libc": "glibc 2.36"}
    folder = tmp_path / "fetched"
    folder.mkdir()
    supplies = Supplies(folder, threading.Event())
    supplies.wheels("little\n", (), host)
    with pytest.raises(LaunchError, match="nosuch"):
        Supplies(make_folder(tmp_path / "again"), threading.Event()).wheels("nosuch\n", (), host)
    assert names_in(hits) == []


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_mount(hits, tmp_path):
    if shutil.which("fusermount3") is None or not Path("/dev/fuse").exists():
        pytest.skip("nothing can be mounted here")
    where = make_folder(tmp_path / "mounted")
    try:
        assert main(["fs", "mount", "-b", "igfs:///", str(where)]) == 0
        assert names_in(hits) == []
    finally:
        if is_mounted(where):
            unmount(str(where))


def test_a_tensorboard(hits, tmp_path):
    board = open_tensorboard(logdirs=[str(make_folder(tmp_path / "events"))])
    try:
        assert names_in(hits) == []
    finally:
        stop_tensorboard(port=board.port)


def test_nodes_of_this_machine(hits, tmp_path):
    home = make_folder(tmp_path / "nodes")
    home.chmod(0o700)
    try:
        ensure_up(EmbeddedOptions(num_nodes=1, heap="256m"), Lifetime.UNTIL_IDLE, home=home)
        assert names_in(hits) == []
    finally:
        down(home, delete_data=True)


def test_a_module_of_ours_finds_what_this_process_finds(hits, monkeypatch, tmp_path):
    own = make_folder(tmp_path / "own")
    (own / "tell.py").write_text("import json, sys, numpy\nprint(json.dumps(sys.argv[1:]))\n")
    monkeypatch.syspath_prepend(str(own))
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook
    done = subprocess.run(own_python("tell", "a b", "$c"), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["a b", "$c"]
    assert names_in(hits) == []
