"""Tests the plugin binary and the private TensorFlow API under several TensorFlow versions, each in a venv.

    python tests/tfplugin/versions.py [--venvs DIR] [VERSION...]

Downloads some 300 MB per version, only once with --venvs. Exits with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = [f"2.{minor}.*" for minor in range(15, 22)]
# Packages that workers need besides TensorFlow and Keras.
PACKAGES = ("numpy", "fsspec", "platformdirs", "asyncssh", "rich")
KERAS = "keras>=3.12"
PYTHON = "3.11"  # the newest with wheels for all versions


def venv(folder: Path, version: str, uv: str, more: Sequence[str] = ("numpy",)) -> Path:
    """Return the interpreter of a venv with one TensorFlow and a worker's packages; make it if needed."""
    where = folder / f"tf-{version.removesuffix('.*')}"
    python = where / "bin/python"
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", PYTHON, where], check=True)
    packages = [f"tensorflow-cpu=={version}", *more]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
    return python


def smoke(python: Path) -> dict[str, object]:
    """Run smoke.py and return its findings."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [python, HERE / "smoke.py"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        return {"crashed": done.returncode, "stderr": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Run the checks under each version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, help="directory for the venvs, kept")
    parser.add_argument("--uv", default=str(Path(sys.executable).with_name("uv")))
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=VERSIONS)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for version in options.versions:
            found = smoke(venv(options.venvs or Path(scratch), version, options.uv))
            checks = found.get("checks", {"start": "failed"})
            assert isinstance(checks, dict)
            failed |= any(outcome != "passed" for outcome in checks.values())
            print(json.dumps({"asked": version, **found}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
