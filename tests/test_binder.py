"""The files of `binder/`, run as repo2docker runs them: in a checkout, by an unprivileged user with an empty HOME."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import nbformat
import pytest

from tests.checkout import copy_checkout
from tests.memory_limit import memory_limit

ROOT = Path(__file__).parents[1]
USER_ID = 54321
BINDER_BYTES = 2 * 1024**3
# JupyterLab as Binder starts it, while another process runs each cell of the quick start, as a user would.
LAB_AND_QUICK_START = """
python -m jupyterlab --no-browser --ip 127.0.0.1 --ServerApp.port=0 >lab.log 2>&1 &
python -m nbconvert --execute --to notebook --output executed.ipynb notebooks/quickstart.ipynb
status=$?
kill $!
wait
exit $status
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Binder's images are Linux")


@pytest.fixture
def binder(tmp_path_factory):
    """Run commands as that user, in a copy of the checkout, with a virtual environment of its own."""
    # Other users cannot enter pytest's temporary directories.
    with tempfile.TemporaryDirectory(prefix="binder-") as scratch:
        base = Path(scratch)
        base.chmod(0o755)
        for name in ("home", "checkout", "tmp"):
            (base / name).mkdir()
        copy_checkout(base / "checkout")
        python = interpreter(base)
        if os.geteuid() == 0:
            for path in (base / "home", base / "tmp", base / "checkout", *(base / "checkout").rglob("*")):
                os.chown(path, USER_ID, USER_ID)
        run = Runner(base)
        run(python, "-m", "venv", base / "home" / "env")
        # Borrow the required packages from this environment, instead of downloading gigabytes again.
        packages = next((base / "home" / "env").glob("lib/python*/site-packages"))
        (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
        yield run


class Runner:
    def __init__(self, base):
        self.base = base
        self.limit = None
        kept = ("PIP_", "SSL_", "LANG", "LC_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "IGNITE_TF_MAVEN")
        kept += tuple(name for name in os.environ if name.lower().endswith("_proxy"))
        self.env = {name: value for name, value in os.environ.items() if name.startswith(kept)}
        self.env |= {
            "HOME": str(base / "home"),
            "TMPDIR": str(base / "tmp"),
            "PATH": f"{base / 'home' / 'env' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(base / "python" / "lib"),  # a copied Python needs its own library
        }

    def __call__(self, *command):
        user = {"user": USER_ID, "group": USER_ID, "extra_groups": []} if os.geteuid() == 0 else {}
        with subprocess.Popen(
            ["sh", "-c", 'read -r _; exec "$@"', "sh", *map(str, command)],
            cwd=self.base / "checkout",
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **user,
        ) as process:
            if self.limit:
                self.limit.take(process.pid)
            try:
                said, errors = process.communicate("\n", timeout=300)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0, (command, said[-3000:], errors[-3000:])
        return said


def interpreter(base):
    """Return the path of this Python, or of a copy if other users cannot reach the original."""
    real = Path(sys._base_executable).resolve()
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in real.parents):
        return real
    skipped = shutil.ignore_patterns(
        "site-packages", "test", "idlelib", "__pycache__", "*.a", "share", "include"
    )
    shutil.copytree(sys.base_prefix, base / "python", ignore=skipped, symlinks=True)
    return base / "python" / "bin" / real.name


@pytest.mark.nightly
def test_binder_brings_a_node_with_the_digits(binder):
    """Nightly. No shorter one: no other test installs the package and starts the node as Binder does."""
    binder("pip", "install", "--no-deps", "-r", "binder/requirements.txt")
    # -I makes Python import the installed package, not the checkout. It must contain the notebook of the demo.
    packaged = (
        "(importlib.resources.files('ignite_tf_magic') / 'ui' / 'notebook' / 'quickstart.ipynb').is_file()"
    )
    assert binder("python", "-I", "-c", f"import importlib.resources; print({packaged})") == "True\n"
    try:
        binder("binder/postBuild")
        assert "no embedded nodes run" in binder("ignite-tf", "local", "status")
        listed = binder("binder/start", "ignite-tf", "caches")
    finally:
        binder("ignite-tf", "local", "down")
    rows = {line.split()[0]: line.split()[1] for line in listed.splitlines()[1:]}
    assert rows == {"DIGITS": "1,438", "DIGITS_TEST": "359"}


@pytest.mark.nightly
def test_the_quick_start_takes_no_more_memory_than_a_binder_has(binder):
    """JupyterLab, a kernel, the node and both workers must fit into 2 GB. Binder ends sessions that use more.

    Nightly. No shorter one: only the whole quick start needs this much memory.
    """
    with memory_limit(BINDER_BYTES) as limit:
        if limit is None:
            pytest.skip("this machine lets nobody limit the memory of processes")
        binder("pip", "install", "--no-deps", "-r", "binder/requirements.txt")
        binder.limit = limit
        try:
            binder("binder/start", "bash", "-c", LAB_AND_QUICK_START)
        finally:
            binder("ignite-tf", "local", "down")
            binder.limit = None
        assert not limit.num_killed
    executed = nbformat.read(binder.base / "checkout" / "notebooks" / "executed.ipynb", as_version=4)
    assert "succeeded" in str(executed.cells)


def test_start_script_starts_jupyter_also_without_a_node(tmp_path):
    """In this environment even `ignite-tf` is missing."""
    done = subprocess.run(
        [ROOT / "binder" / "start", "echo", "jupyter", "is up"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "jupyter is up\n")
    assert "could not be prepared" in done.stderr


def test_python_is_one_that_the_package_supports():
    version = (ROOT / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert tuple(map(int, version.split("."))) >= (3, 10)
