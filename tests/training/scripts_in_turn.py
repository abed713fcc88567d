"""Runs scripts one after the other in one process, to import TensorFlow once: scripts_in_turn.py FOLDER SCRIPT..."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import as_worker  # noqa: F401

folder, *scripts = sys.argv[1:]
for script in scripts:
    sys.argv = [script, folder]
    runpy.run_path(str(Path(__file__).with_name(script)), run_name="__main__")
