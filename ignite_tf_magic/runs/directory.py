"""The directory of a run: the names of all its files, and how it is made."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.errors import RunNotFound

_MAX_NAME = 40
_MAX_ID_BYTES = 200
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
        return self.path / CREDENTIALS

    @property
    def seal_key(self) -> Path:
        """The key of a detached run, with which its hosts seal what they write into the registry."""
        return self.path / SEAL_KEY

    @property
    def submitted(self) -> Path:
        """The record of a detached run as it was handed to its hosts, where that was done."""
        return self.path / "submitted.json"

    @property
    def is_verified(self) -> bool:
        """Whether the record here can only have come from this user's processes, not from a registry's open rows."""
        return self.path.parent.name != SEEN or self.seal_key.exists()

    @property
    def files(self) -> Path:
        """For the script's own output."""
        return self.path / "files"

    def script(self, name: str) -> Path:
        """The script of a run."""
        return self.path / script_path(name)

    def log(self, worker: int, generation: int = 1) -> Path:
        """A worker's output in one generation."""
        return self.path / log_name(worker, generation)

    def exit(self, worker: int, generation: int = 1) -> Path:
        """How a worker's script ended."""
        return self.path / exit_name(worker, generation)


# Names of files that lie in the run's directory on the worker's own host, too.


def log_name(worker: int, generation: int) -> str:
    """A worker's output in one generation."""
    return _of_generation(f"worker-{worker}", generation, "log")


def exit_name(worker: int, generation: int) -> str:
    """How a worker's script ended."""
    return _of_generation(f"exit-{worker}", generation, "json")


def phase_name(worker: int, generation: int) -> str:
    """What a worker's process does."""
    return _of_generation(f"phase-{worker}", generation, "txt")


def task_name(worker: int, generation: int) -> str:
    """What a worker is told to do."""
    return _of_generation(f"task-{worker}", generation, "json")


def assignment_name(worker: int, generation: int) -> str:
    """The sizes of a worker's partitions."""
    return _of_generation(f"assignment-{worker}", generation, "json")


def claim_name(worker: int, generation: int) -> str:
    """The lock of the process that takes part for a worker."""
    return _of_generation(f"claim-{worker}", generation, "lock")


def script_path(name: str) -> str:
    """The script, under its own name as far as that can be a file's."""
    return f"script/{slug(name.removesuffix('.py'), lower=False) or 'script'}.py"


CREDENTIALS = "credentials.json"
SEAL_KEY = "seal.key"
SEEN = "seen"  # holds the directories of runs of other machines


def _of_generation(stem: str, generation: int, suffix: str) -> str:
    return f"{stem}.{suffix}" if generation <= 1 else f"{stem}.g{generation}.{suffix}"


def make_private(path: Path) -> None:
    """Make a directory, and those that are missing above it, for this user alone, whatever the umask lets others do."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def create_directory(runs_dir: Path, name: str) -> RunDirectory:
    """Make the directory of a new run, named like k3f-mnist-1121-0412."""
    make_private(runs_dir)
    while True:
        directory = RunDirectory(runs_dir / new_run_id(name))
        try:
            directory.path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        directory.files.mkdir(mode=0o700)
        return directory


def new_run_id(name: str) -> str:
    """Make an id up, like k3f-mnist-1121-0412: it begins with what tells it from others, which a person types."""
    mark = "".join(secrets.choice(_MARK_LETTERS) for _ in range(3))
    return f"{mark}-{slug(name) or 'run'}-{time.strftime('%m%d-%H%M')}"


def is_directory_name(run_id: str) -> bool:
    """Tell whether an id can be the name of a directory, and of no other than its own."""
    is_one = Path(run_id).name == run_id and run_id not in ("", "..") and "\0" not in run_id
    return is_one and len(run_id.encode(errors="replace")) <= _MAX_ID_BYTES


def resolve_prefix(runs: Mapping[str, bool], beginning: str) -> str | None:
    """Choose the run of that id; else the only one whose id, or what stands behind its mark, begins so.

    Args:
        runs: Ids, and whether each run goes on: the only one of those that does counts before all that have ended.
        beginning: What somebody has written of an id.

    Returns:
        The id; None when none begins so.

    Raises:
        RunNotFound: Several do; the error lists them.
    """
    if beginning in runs or not beginning:
        return beginning or None
    matches = [
        each for each in runs if each.startswith(beginning) or each.partition("-")[2].startswith(beginning)
    ]
    live = [each for each in matches if runs[each]]
    if len(live or matches) > 1:
        raise RunNotFound(
            f"run {beginning!r} may be any of {', '.join(live or matches)}; write more of its id"
        )
    return next(iter(live or matches), None)


def slug(text: str, *, lower: bool = True) -> str:
    """Keep of a text what can be in a file's name on any system."""
    kept = re.sub(r"[^A-Za-z0-9_]+", "-", text.lower() if lower else text).strip("-")
    return kept[:_MAX_NAME].rstrip("-")
