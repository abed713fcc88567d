"""The data that a cluster with `persist` keeps over `down`, and who may start on it again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ignite_tf_magic.embedded.options import EmbeddedOptions, count_nodes
from ignite_tf_magic.errors import EmbeddedError
from ignite_tf_magic.launch.files import write_private

_NOTE = "cluster.json"


def data_directory(home: Path) -> Path:
    """Where the work directories of nodes with `persist` are."""
    return home / "data"


def node_data(home: Path, index: int) -> Path:
    """The work directory of a node with `persist`."""
    return data_directory(home) / f"node-{index}"


def check_data(home: Path, options: EmbeddedOptions) -> None:
    """Refuse to start on data that the cluster asked for cannot open.

    Raises:
        EmbeddedError: It was written by another number of nodes, or with another setting of authentication.
    """
    if not options.persist:
        return
    try:
        note = json.loads((data_directory(home) / _NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        delete_kept_data(home)  # of a first start that did not come to its end
        return
    wrote = _description(note["num_nodes"], note["authentication"])
    asked = _description(options.num_nodes, options.authentication)
    if wrote != asked:
        raise EmbeddedError(
            f"the data kept in {data_directory(home)} was written by {wrote}, and only such a cluster can open "
            f"it; asked for were {asked}. Start the cluster as it was, or remove that folder to begin anew."
        )


def _description(num_nodes: int, authentication: bool) -> str:
    return f"{count_nodes(num_nodes)} {'with' if authentication else 'without'} authentication"


def note_data(home: Path, options: EmbeddedOptions) -> None:
    """Write down what kind of cluster the data belongs to; from then on it is kept."""
    note = {"num_nodes": options.num_nodes, "authentication": options.authentication}
    write_private(data_directory(home) / _NOTE, json.dumps(note))


def delete_kept_data(home: Path) -> None:
    """Remove all data that was kept."""
    if data_directory(home).exists():
        shutil.rmtree(data_directory(home))
