"""Executes the notebooks of `notebooks/` in a real kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

CELL_S = 900  # for a busy machine; on a quiet one no cell takes a minute
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(name: str, directory: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Execute a notebook in a directory; return each cell's printed and displayed text, by cell id.

    Raises:
        CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    resources = {"metadata": {"path": str(directory)}}
    with TemporaryDirectory(prefix="ipc-") as sockets:
        # A free TCP port could be taken by another test before the kernel binds it, so the kernel uses IPC sockets.
        client = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources)
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.ip = "ipc", f"{sockets}/kernel"
        try:
            client.execute(env=env)
        finally:
            nbformat.write(notebook, directory / name)  # for inspection if a test fails
    return {cell.id: _text(cell) for cell in notebook.cells if cell.cell_type == "code"}


def _text(cell: Any) -> str:
    return "".join(
        output.text if output.output_type == "stream" else f"{output.data.get('text/plain', '')}\n"
        for output in cell.outputs
    )


def placed_rows(described: str) -> list[tuple[str, int, int]]:
    """Parse the workers shown by `describe`: host, rows, and the percentage of rows local to that host."""
    found = re.findall(r"^worker \d+ +(\S+) .* ([\d,]+) +(\d+)%$", described, re.MULTILINE)
    return [(host, int(rows.replace(",", "")), int(share)) for host, rows, share in found]


def rows_of_mine(said: str) -> list[int]:
    """Parse the row counts printed by the workers of the detached run in your_own_cluster.ipynb."""
    return [int(rows) for rows in re.findall(r"rows of mine: (\d+)", said)]
