"""At interpreter exit no thread enters Python any more, and nothing crashes or hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_leaving_with_a_writer_open_and_a_pipeline_running():
    command = [sys.executable, "-m", "tests.tfplugin.exiting"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    words = "the Python interpreter behind this file system is ending"
    assert done.stdout.splitlines() == [
        "a writer was closed",  # from tf.io.write_file, before the exit; the open writer is not closed
        *(f"{use}: {words}" for use in ("exists", "open", "write", "close")),
    ]
    assert "terminate" not in done.stderr
