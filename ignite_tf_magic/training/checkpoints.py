"""Reads and writes checkpoints of a training: arrays and a few facts in one file.

A directory contains files step-N.npz, one for each checkpoint. A checkpoint is written under another name and then
renamed, and older ones are removed. So a reader finds the last complete checkpoint, even if the writer was killed.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec
import numpy as np

_NAME = re.compile(r"step-(\d+)\.npz")
_FACTS = "facts.json"
_KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The saved state of a training.

    Attributes:
        step: Steps finished since the beginning of the training.
        arrays: Arrays by name.
        facts: Further values that JSON can represent, by name.
    """

    step: int
    arrays: Mapping[str, np.ndarray] = field(repr=False)
    facts: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return the checkpoint as the content of a file."""
        buffer = io.BytesIO()
        facts = np.frombuffer(json.dumps({"step": self.step, **self.facts}).encode(), np.uint8)
        arrays: dict[str, Any] = {_FACTS: facts, **self.arrays}
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Parse the content of a file.

        Raises:
            ValueError: The content is damaged.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                facts = json.loads(found[_FACTS].tobytes())
                arrays = {name: found[name] for name in found.files if name != _FACTS}
            return cls(int(facts.pop("step")), arrays, facts)
        except (zipfile.BadZipFile, KeyError, EOFError, OSError) as error:
            raise ValueError(f"the checkpoint is damaged: {error!r}") from error


class CheckpointDirectory:
    """A directory of checkpoints at a URL for fsspec. One process may write, any process may read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._path = fsspec.core.url_to_fs(url)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove all but the last two. Blocks until it is written.

        Raises:
            OSError: The checkpoint could not be written, or an older one not removed. A write that fails keeps the
                older ones.
        """
        self._files.makedirs(self._path, exist_ok=True)
        part = f"{self._path}/step-{checkpoint.step}.part"
        with self._files.open(part, "wb") as file:
            file.write(checkpoint.to_bytes())
        self._files.mv(part, f"{self._path}/step-{checkpoint.step}.npz")
        for step in self._steps()[:-_KEPT]:
            self._files.rm(f"{self._path}/step-{step}.npz")

    def latest(self) -> Checkpoint | None:
        """Return the last complete checkpoint, or None if there is none.

        Raises:
            OSError: The directory cannot be read.
        """
        for step in reversed(self._steps()):
            try:
                return self.read(step)
            except (ValueError, FileNotFoundError):
                continue
        return None

    def read(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step.

        Raises:
            OSError: The checkpoint does not exist or cannot be read.
            ValueError: The checkpoint is damaged.
        """
        return Checkpoint.from_bytes(self._files.cat_file(f"{self._path}/step-{step}.npz"))

    def _steps(self) -> list[int]:
        try:
            self._files.invalidate_cache()
            names = [str(path).rpartition("/")[2] for path in self._files.ls(self._path, detail=False)]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def directory_in_run(name: str) -> CheckpointDirectory | None:
    """Return the checkpoint directory of a training in this worker's run, or None outside of runs."""
    run = os.environ.get("IGNITE_TF_RUN_URI")
    return CheckpointDirectory(f"{run}/training/{name}") if run else None
