"""Checks the packages that a worker needs: NumPy, TensorFlow, their requirements, fsspec, and this package."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ignite_tf_magic.session import RunRequest, RunState, open_session

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import importlib.util, os, sys
for absent in ("pyignite", "asyncssh", "IPython", "ipywidgets", "jgo", "pandas", "platformdirs", "pytest"):
    assert importlib.util.find_spec(absent) is None, absent
import tensorflow as tf
from ignite_tf_magic import IgniteDataset
rows = sum(len(tf.nest.flatten(batch)[0]) for batch in IgniteDataset("WORKER_NEEDS").batch(100))
uri = os.environ["IGNITE_TF_RUN_URI"]
tf.io.write_file(uri + "/model/rows", str(rows))
tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).write(uri + "/checkpoints/last")
import fsspec
with fsspec.open(uri + "/model/rows", "r") as file:
    print("rows", file.read())
"""


def closure(*names: str) -> set[str]:
    """Return the names of these distributions and of all their requirements, without extras."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # only required on another system or Python
        found.add(name)
        waiting += [re.split(r"[^\w.-]", r)[0] for r in required if "extra ==" not in r.replace("'", '"')]
    return found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with links to these distributions only."""
    home = tmp_path_factory.mktemp("worker") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=300)
    python = home / "bin" / "python"
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for name in closure("tensorflow", "numpy", "fsspec"):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if source.exists() and not (purelib / top).exists():
                (purelib / top).symlink_to(source)
    (purelib / "ignite_tf_magic").symlink_to(ROOT / "ignite_tf_magic")
    return str(python)


def test_workers_and_reconcilers_begin_with_these_alone(bare_python):
    """Code that runs on a host imports nothing else, even if the run's interpreter is not the user's."""
    modules = ("supervision.reconciler", "bootstrap", "parked")
    code = "; ".join(f"import ignite_tf_magic.runs.{name}" for name in modules)
    sent = "import ignite_tf_magic.serialization.sent_function, sys; assert 'cloudpickle' not in sys.modules"
    for each in (code, sent):
        subprocess.run([bare_python, "-c", each], check=True, timeout=300)


@pytest.mark.nightly
def test_a_worker_reads_and_writes_with_these_alone(ignite, bare_python, tmp_path, monkeypatch):
    """Nightly. No shorter one: what a worker needs shows only in an interpreter that has nothing else."""
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with open_session(ignite.connect_options, report=said.append) as session:
        session.load("WORKER_NEEDS", {"x": [[1.0, 2.0]] * 300})
        try:
            run = session.start_run(RunRequest("WORKER_NEEDS", SCRIPT, python=bare_python))
            info = run.wait(300)
        finally:
            session.client.destroy_cache("WORKER_NEEDS")
    output = "\n".join(run.last_lines(0, 30))
    assert info.state is RunState.SUCCEEDED, output
    assert "rows 300" in output
    assert not said
