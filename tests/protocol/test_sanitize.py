"""The compiled decoder under AddressSanitizer and UndefinedBehaviorSanitizer; `make sanitize` is the long form."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_mutated_pages_and_answers_show_the_sanitizers_nothing():
    words = [sys.executable, "-m", "benchmarks.sanitize", "--pages", "1000", "--seed", "1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,000 pages" in done.stdout
