"""The directory of a run: names of its files, and how it is created."""

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
_MARK_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without characters that look alike


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of a run. The directory is readable by its owner only."""

    path: Path

    @property
    def run_id(self) -> str:
        """The id of the run, which is the directory's name."""
        return self.path.name

    @property
    def uri(self) -> str:
        """The run's directory in igfs."""
        return f"igfs:///runs/{self.run_id}"

    @property
    def record(self) -> Path:
        """The run's record. The run exists once this file does."""
        return self.path / "run.json"

    @property
    def owner_lock(self) -> Path:
        """The lock that the run's owner holds."""
        return self.path / "owner.lock"

    @property
    def stop_request(self) -> Path:
        """If this file exists, the owner stops the run."""
        return self.path / "stop"

    @property
    def credentials(self) -> Path:
        """The credentials with which workers log in to the Ignite cluster."""
        return self.path / CREDENTIALS

    @property
    def seal_key(self) -> Path:
        """The key with which the hosts of a detached run sign what they write to the registry."""
        return self.path / SEAL_KEY

    @property
    def submitted(self) -> Path:
        """The record of a detached run as it was submitted to its hosts; exists on the submitting machine only."""
        return self.path / "submitted.json"

    @property
    def is_verified(self) -> bool:
        """Whether only this user's processes can have written the record; it is not from an unsigned registry row."""
        return self.path.parent.name != SEEN or self.seal_key.exists()

    @property
    def files(self) -> Path:
        """The directory for the script's own output."""
        return self.path / "files"

    def script(self, name: str) -> Path:
        """Return the path of the run's script."""
        return self.path / script_path(name)

    def log(self, worker: int, generation: int = 1) -> Path:
        """Return the path of a worker's output in one generation."""
        return self.path / log_name(worker, generation)

    def exit(self, worker: int, generation: int = 1) -> Path:
        """Return the path of the report of how a worker's script ended."""
        return self.path / exit_name(worker, generation)


# Names of files that also exist in the run's directory on the worker's own host.


def log_name(worker: int, generation: int) -> str:
    """Return the file name of a worker's output in one generation."""
    return _of_generation(f"worker-{worker}", generation, "log")


def exit_name(worker: int, generation: int) -> str:
    """Return the file name of the report of how a worker's script ended."""
    return _of_generation(f"exit-{worker}", generation, "json")


def phase_name(worker: int, generation: int) -> str:
    """Return the file name of a worker's current phase."""
    return _of_generation(f"phase-{worker}", generation, "txt")


def task_name(worker: int, generation: int) -> str:
    """Return the file name of a worker's task."""
    return _of_generation(f"task-{worker}", generation, "json")


def assignment_name(worker: int, generation: int) -> str:
    """Return the file name of the workers' row counts, from which a worker computes equal numbers of steps."""
    return _of_generation(f"assignment-{worker}", generation, "json")


def claim_name(worker: int, generation: int) -> str:
    """Return the file name of a worker's training lock, held by the process that takes part in the training."""
    return _of_generation(f"claim-{worker}", generation, "lock")


def script_path(name: str) -> str:
    """Return the path of the script, with its own name as far as that is a valid file name."""
    return f"script/{slug(name.removesuffix('.py'), lower=False) or 'script'}.py"


CREDENTIALS = "credentials.json"
SEAL_KEY = "seal.key"
SEEN = "seen"  # contains the directories of runs on other machines


def _of_generation(stem: str, generation: int, suffix: str) -> str:
    return f"{stem}.{suffix}" if generation <= 1 else f"{stem}.g{generation}.{suffix}"


def make_private(path: Path) -> None:
    """Create a directory and its missing parents, accessible to this user only, whatever the umask."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def create_directory(runs_dir: Path, name: str) -> RunDirectory:
    """Create the directory of a new run, named like k3f-mnist-1121-0412."""
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
    """Return a new id like k3f-mnist-1121-0412. The random part comes first, so a few typed characters identify it."""
    mark = "".join(secrets.choice(_MARK_LETTERS) for _ in range(3))
    return f"{mark}-{slug(name) or 'run'}-{time.strftime('%m%d-%H%M')}"


def is_directory_name(run_id: str) -> bool:
    """Return whether an id is valid as the name of a directory and cannot lead to another path."""
    is_one = Path(run_id).name == run_id and run_id not in ("", "..") and "\0" not in run_id
    return is_one and len(run_id.encode(errors="replace")) <= _MAX_ID_BYTES


def resolve_prefix(runs: Mapping[str, bool], beginning: str) -> str | None:
    """Return the run with exactly this id, else the only run that matches it.

    A run matches if its id begins with the text, or if the part after the random first part does.

    Args:
        runs: Whether each run is still active, by id. A single active match takes precedence over ended runs.
        beginning: The beginning of an id, as the user typed it.

    Returns:
        The id, or None if no run matches.

    Raises:
        RunNotFound: Several runs match; the message lists them.
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
    """Return a text reduced to characters that are valid in file names on any system."""
    kept = re.sub(r"[^A-Za-z0-9_]+", "-", text.lower() if lower else text).strip("-")
    return kept[:_MAX_NAME].rstrip("-")
