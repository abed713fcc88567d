"""Manages the data that a cluster with `persist` keeps after `down`, and checks which cluster can use it again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ignite_tf_magic.embedded.options import EmbeddedOptions, count_nodes
from ignite_tf_magic.errors import EmbeddedError
from ignite_tf_magic.launch.files import write_private

_NOTE = "cluster.json"


def data_directory(home: Path) -> Path:
    """Return the directory that contains the work directories of nodes with `persist`."""
    return home / "data"


def node_data(home: Path, index: int) -> Path:
    """Return the work directory of a node with `persist`."""
    return data_directory(home) / f"node-{index}"


def check_data(home: Path, options: EmbeddedOptions) -> None:
    """Raise an error if the requested cluster cannot open the kept data.

    Raises:
        EmbeddedError: The data was written by another number of nodes, or with another authentication setting.
    """
    if not options.persist:
        return
    try:
        note = json.loads((data_directory(home) / _NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        delete_kept_data(home)  # left by a first start that was interrupted
        return
    wrote = _description(note["num_nodes"], note["authentication"])
    asked = _description(options.num_nodes, options.authentication)
    if wrote != asked:
        raise EmbeddedError(
            f"the data kept in {data_directory(home)} was written by {wrote}, and only such a cluster can open "
            f"it; requested: {asked}. Start the cluster as before, or remove that folder to start empty."
        )


def _description(num_nodes: int, authentication: bool) -> str:
    return f"{count_nodes(num_nodes)} {'with' if authentication else 'without'} authentication"


def note_data(home: Path, options: EmbeddedOptions) -> None:
    """Record which kind of cluster the data belongs to. Data without this record is not kept."""
    note = {"num_nodes": options.num_nodes, "authentication": options.authentication}
    write_private(data_directory(home) / _NOTE, json.dumps(note))


def delete_kept_data(home: Path) -> None:
    """Remove all kept data."""
    if data_directory(home).exists():
        shutil.rmtree(data_directory(home))
