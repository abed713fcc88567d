"""The migration guides of docs/migration: scripts before and after."""

from __future__ import annotations

import difflib
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "migration"
NAMES = ("tensorflow_io", "tensorflowonspark", "tensorflowonspark_ps", "keras_tutorial")


def script(name: str, when: str) -> str:
    """Read a script; `when` is "before" or "after"."""
    return (FOLDER / f"{name}_{when}.py").read_text(encoding="utf-8")


def difference(name: str) -> list[str]:
    """Return the changes as lines of a diff."""
    before, after = (script(name, when).splitlines() for when in ("before", "after"))
    return [
        line
        for line in difflib.unified_diff(before, after, n=1, lineterm="")
        if line[:3] not in ("---", "+++")
    ]
