"""Notebooks of `notebooks/`, executed in a real kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

CELL_S = 900  # on a busy machine; no cell takes a minute on a quiet one
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(name: str, directory: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Execute a notebook in a directory; give what its cells have printed and shown as text, by their ids.

    Raises:
        CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    resources = {"metadata": {"path": str(directory)}}
    with TemporaryDirectory(prefix="ipc-") as sockets:
        # Ports that are free when a kernel is told of them may be another test's when it binds them.
        client = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources)
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.ip = "ipc", f"{sockets}/kernel"
        try:
            client.execute(env=env)
        finally:
            nbformat.write(notebook, directory / name)  # to look at, where a test fails
    return {cell.id: _text(cell) for cell in notebook.cells if cell.cell_type == "code"}


def _text(cell: Any) -> str:
    return "".join(
        output.text if output.output_type == "stream" else f"{output.data.get('text/plain', '')}\n"
        for output in cell.outputs
    )


def placed_rows(described: str) -> list[tuple[str, int, int]]:
    """Read what `describe` shows of a run's workers: host, rows, and the share of them on that host in percent."""
    found = re.findall(r"^worker \d+ +(\S+) .* ([\d,]+) +(\d+)%$", described, re.MULTILINE)
    return [(host, int(rows.replace(",", "")), int(share)) for host, rows, share in found]


def rows_of_mine(said: str) -> list[int]:
    """Read what the workers of the detached run of your_own_cluster.ipynb say."""
    return [int(rows) for rows in re.findall(r"rows of mine: (\d+)", said)]
