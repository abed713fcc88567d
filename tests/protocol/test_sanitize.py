"""The compiled decoder under AddressSanitizer and UndefinedBehaviorSanitizer; `make sanitize` is the long form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_mutated_pages_and_answers_show_the_sanitizers_nothing(tmp_path):
    words = [sys.executable, "-m", "benchmarks.sanitize", "--pages", "1000", "--seed", "1"]
    words += ["--results", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,000 pages" in done.stdout
    row = json.loads((tmp_path / "sanitize.json").read_text())
    assert (row["pages"], row["clean"]) == (1000, True)
    assert 0 < row["refused"] < 1000
