"""Checkpoints of a training: arrays and a few facts in one file, whole or not there.

A directory holds files step-N.npz, each a checkpoint. One is written under another name, then renamed; older ones go.
So whoever reads finds the last whole one, whatever has happened to who wrote it.
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
    """What was saved.

    Attributes:
        step: Steps done since the beginning of the training.
        arrays: By name.
        facts: Anything that JSON can hold.
    """

    step: int
    arrays: Mapping[str, np.ndarray] = field(repr=False)
    facts: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return it as a file."""
        buffer = io.BytesIO()
        facts = np.frombuffer(json.dumps({"step": self.step, **self.facts}).encode(), np.uint8)
        arrays: dict[str, Any] = {_FACTS: facts, **self.arrays}
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Read a file.

        Raises:
            ValueError: It is damaged.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                facts = json.loads(found[_FACTS].tobytes())
                arrays = {name: found[name] for name in found.files if name != _FACTS}
            return cls(int(facts.pop("step")), arrays, facts)
        except (zipfile.BadZipFile, KeyError, EOFError, OSError) as error:
            raise ValueError(f"the checkpoint is damaged: {error!r}") from error


class CheckpointDirectory:
    """Checkpoints at a URL that fsspec understands. One process writes, any may read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._path = fsspec.core.url_to_fs(url)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write one, and remove all but the last two. Blocks until it is there.

        Raises:
            OSError: It could not be written; what was there is there still.
        """
        self._files.makedirs(self._path, exist_ok=True)
        part = f"{self._path}/step-{checkpoint.step}.part"
        with self._files.open(part, "wb") as file:
            file.write(checkpoint.to_bytes())
        self._files.mv(part, f"{self._path}/step-{checkpoint.step}.npz")
        for step in self._steps()[:-_KEPT]:
            self._files.rm(f"{self._path}/step-{step}.npz")

    def latest(self) -> Checkpoint | None:
        """Read the last whole one; None when there is none.

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
        """Read the checkpoint of a step.

        Raises:
            OSError: It is not there.
            ValueError: It is damaged.
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
    """Return the place for a training of this name in the run of this process, a worker; None outside of runs."""
    run = os.environ.get("IGNITE_TF_RUN_URI")
    return CheckpointDirectory(f"{run}/training/{name}") if run else None
