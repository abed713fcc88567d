"""`ignite-tf demo`: starts nodes, and runs the quick start notebook, which loads real digits, in a kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import (
    EmbeddedCluster,
    EmbeddedOptions,
    RunInfo,
    list_runs,
    local_up,
)
from ignite_tf_magic.settings.options import state_dir

NOTEBOOK = "quickstart.ipynb"

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The results of the demo.

    Attributes:
        notebook: The notebook with its output.
        run: The training run, or None if the notebook started none.
        cluster: The nodes, which keep running.
    """

    notebook: Path
    run: RunInfo | None
    cluster: EmbeddedCluster


def run_demo(write: Write) -> DemoOutcome:
    """Start three nodes, and run the quick start notebook, which loads the digits.

    Uses existing nodes and data again. Blocks until the notebook has ended, and passes its output to `write` at once.

    Raises:
        IgniteTfError: A cell of the notebook failed, or a package for notebooks is missing.
    """
    _require_notebook_packages()
    write("== Apache Ignite\n")
    cluster = local_up(EmbeddedOptions(num_nodes=3), report=lambda line: write(f"{line}\n"))
    known = {run.id for run in list_runs(include_ended=True).runs}
    write(f"\n== Notebook: {NOTEBOOK}\n")
    path = _execute(cluster, write)
    new = [run for run in list_runs(include_ended=True).runs if run.id not in known]
    return DemoOutcome(path, new[-1] if new else None, cluster)


def _require_notebook_packages() -> None:
    for package in ("ipykernel", "matplotlib", "nbclient", "pandas", "sklearn", "tensorflow"):
        if find_spec(package) is None:
            raise IgniteTfError(f"the demo needs the package {package!r}: pip install 'ignite_tf_magic[all]'")


def _execute(cluster: EmbeddedCluster, write: Write) -> Path:
    """Run a copy of the notebook in a kernel of this interpreter, and save the copy even after an error."""
    import nbformat
    from nbclient.exceptions import CellExecutionError

    directory = state_dir() / "demo"
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / NOTEBOOK
    source = (files("ignite_tf_magic") / "ui" / "notebook" / NOTEBOOK).read_text(encoding="utf-8")
    notebook = nbformat.reads(source, as_version=4)
    endpoints = ",".join(map(str, cluster.connect_options.endpoints))
    client = _client(notebook, directory, write)
    try:
        client.execute(env={**os.environ, "IGNITE_TF_CLUSTER": endpoints})
    except CellExecutionError as error:
        raise IgniteTfError(
            f"the notebook stopped: {error.ename}: {error.evalue}\nwhat it had done by then is in {path}"
        ) from None
    finally:
        nbformat.write(notebook, path)
    return path


def _client(notebook: Any, directory: Path, write: Write) -> Any:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class LiveClient(NotebookClient):  # type: ignore[misc]
        """A notebook client that shows each output at once."""

        def output(self, outs: list[Any], msg: dict[str, Any], *where: Any) -> Any:
            write(_text_of(msg["msg_type"], msg["content"]))
            return super().output(outs, msg, *where)

    def show_source(cell: Any, cell_index: int) -> None:
        del cell_index
        write(_source_of(cell))

    kernel = AsyncKernelManager(kernel_name="python3")
    # Use this interpreter, even if the user has installed another kernel with the same name.
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"]
    kernel._kernel_spec = KernelSpec(argv=argv, language="python", display_name="Python 3")
    return LiveClient(
        notebook,
        km=kernel,
        timeout=None,
        coalesce_streams=True,
        resources={"metadata": {"path": str(directory)}},
        on_cell_start=show_source,
    )


def _source_of(cell: Any) -> str:
    if cell.cell_type != "code":
        return f"\n{cell.source}\n"
    first, *rest = cell.source.splitlines() or [""]
    return "\n" + "\n".join([f">>> {first}", *(f"... {line}".rstrip() for line in rest)]) + "\n"


def _text_of(kind: str, content: dict[str, Any]) -> str:
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return "\n".join(content["traceback"]) + "\n"
    if "image/png" in content.get("data", {}):
        return "[a picture; it is in the notebook]\n"
    return f"{content.get('data', {}).get('text/plain', '')}\n"
