"""Markdown, as pages that are made need it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_page(path: Path, text: str) -> None:
    """Write a page; one that has not changed keeps its time, so that only changes are built."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def cell(text: object) -> str:
    """Return text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def words(text: object) -> str:
    """Return plain text for a cell of Markdown: what looks like markup is shown as it stands."""
    return re.sub(r"([*<>_\[\]])", r"\\\1", cell(text))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


def block(text: str) -> str:
    """Return lines that are shown as they stand."""
    return f"```text\n{text.rstrip()}\n```\n"
