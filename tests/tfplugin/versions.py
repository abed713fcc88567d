"""A campaign: the plugin binary, and what is used of private TensorFlow, under several versions, each in a venv.

    python tests/tfplugin/versions.py [--venvs DIR] [VERSION...]

Downloads some 300 MB per version, once when --venvs is kept. Ends with 1 when a check failed.
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
# What workers need beside TensorFlow and a Keras.
PACKAGES = ("numpy", "fsspec", "platformdirs", "asyncssh", "rich")
KERAS = "keras>=3.12"
PYTHON = "3.11"  # the newest that all of them have wheels for


def venv(folder: Path, version: str, uv: str, more: Sequence[str] = ("numpy",)) -> Path:
    """Make a venv with one TensorFlow and what a worker needs, unless it is there; give its interpreter."""
    where = folder / f"tf-{version.removesuffix('.*')}"
    python = where / "bin/python"
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", PYTHON, where], check=True)
    packages = [f"tensorflow-cpu=={version}", *more]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
    return python


def smoke(python: Path) -> dict[str, object]:
    """Run smoke.py and give what it found."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [python, HERE / "smoke.py"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        return {"crashed": done.returncode, "stderr": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Run the campaign."""
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
