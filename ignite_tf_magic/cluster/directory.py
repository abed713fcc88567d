"""The directory of a run: the names of all its files, and how it is made."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

_MAX_NAME = 40
_MARK_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that look alike


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where the files of a run are. The directory is readable by its owner only."""

    path: Path

    @property
    def run_id(self) -> str:
        """The id of the run, which is the directory's name."""
        return self.path.name

    @property
    def uri(self) -> str:
        """Where in igfs the run leaves its files."""
        return f"igfs:///runs/{self.run_id}"

    @property
    def record(self) -> Path:
        """The run's record; once it is there, the run is."""
        return self.path / "run.json"

    @property
    def owner_lock(self) -> Path:
        """Held by the run's owner."""
        return self.path / "owner.lock"

    @property
    def stop_request(self) -> Path:
        """Its presence asks the owner to stop the run."""
        return self.path / "stop"

    @property
    def credentials(self) -> Path:
        """What the workers need to be let into the Ignite cluster."""
        return self.path / "credentials.json"

    @property
    def start(self) -> Path:
        """Where the workers' interpreters start: an empty directory, so that no file there hides a module."""
        return self.path / "start"

    @property
    def files(self) -> Path:
        """For the script's own output."""
        return self.path / "files"

    def script(self, name: str) -> Path:
        """The script, under its own name as far as that can be a file's."""
        return self.path / "script" / f"{slug(name.removesuffix('.py'), lower=False) or 'script'}.py"

    def task(self, worker: int) -> Path:
        """What a worker is told to do."""
        return self.path / f"task-{worker}.json"

    def assignment(self, worker: int) -> Path:
        """The sizes of a worker's partitions."""
        return self.path / f"assignment-{worker}.json"

    def log(self, worker: int) -> Path:
        """A worker's output."""
        return self.path / f"worker-{worker}.log"

    def exit(self, worker: int) -> Path:
        """How a worker's script ended."""
        return self.path / f"exit-{worker}.json"

    def worker_lock(self, worker: int) -> Path:
        """Held by a worker's process; tells its pid."""
        return self.path / f"worker-{worker}.lock"


def create_directory(runs_dir: Path, name: str) -> RunDirectory:
    """Make the directory of a new run, named like mnist-1121-0412-k3f."""
    prefix = f"{slug(name) or 'run'}-{time.strftime('%m%d-%H%M')}"
    runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        mark = "".join(secrets.choice(_MARK_LETTERS) for _ in range(3))
        directory = RunDirectory(runs_dir / f"{prefix}-{mark}")
        try:
            directory.path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        for inner in (directory.start, directory.files, directory.script("x").parent):
            inner.mkdir(mode=0o700)
        return directory


def slug(text: str, *, lower: bool = True) -> str:
    """Keep of a text what can be in a file's name on any system."""
    kept = re.sub(r"[^A-Za-z0-9_]+", "-", text.lower() if lower else text).strip("-")
    return kept[:_MAX_NAME].rstrip("-")
