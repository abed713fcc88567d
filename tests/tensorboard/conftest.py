"""TensorBoards that end with the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_tf_magic.tensorboard.lifecycle import list_boards, open_board, stop_boards
from ignite_tf_magic.tensorboard.record import BoardSpec, LogSource, TensorBoardInfo


@pytest.fixture
def root(tmp_path) -> Path:
    """The directory in which the TensorBoards of a test are recorded."""
    root = tmp_path / "boards"
    yield root
    stop_boards(root, lambda _: True, print)
    assert not list_boards(root)


@pytest.fixture
def show(root):
    """Return a function that opens a TensorBoard: `show({"run": directory})`, `show({"run": [directory, uri]})`."""

    def show(sources: dict[str, object], **options) -> TensorBoardInfo:
        listed = {name: uris if isinstance(uris, list) else [uris] for name, uris in sources.items()}
        named = tuple(LogSource(name, str(uri)) for name, uris in listed.items() for uri in uris)
        options = {"cwd": str(root.parent), "reload_interval_s": 0.2, **options}
        return open_board(BoardSpec(named, **options), root, print)

    return show
