"""Removes unused files from a host, when a client that prunes runs asks for it."""

from __future__ import annotations

import os
import time

from ignite_tf_magic.launch.agent.disk import names_in, read_json, remove_tree
from ignite_tf_magic.launch.agent.runs import MAX_RECORD_BYTES, Runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_FORGOTTEN_S = 86_400.0  # an owner that has not come back by then no longer needs its credentials


def tidy(runs: Runs, digest: str, unused_s: float) -> dict[str, Any]:
    """Remove what has been unused for `unused_s`; return what was removed and what could not be."""
    found = _Tidying(runs, digest, unused_s)
    found.interrupted_removals()
    found.parcels()
    found.agents()
    found.environments()
    found.credentials()
    return {"removed": found.removed, "kept": found.kept}


class _Tidying:
    def __init__(self, runs: Runs, digest: str, unused_s: float) -> None:
        self._runs = runs
        self._digest = digest
        self._oldest = time.time() - unused_s
        self._forgotten = time.time() - min(unused_s, _FORGOTTEN_S)
        self._records = [self._record(name) for name in names_in(f"{runs.root}/runs")]
        self.removed: list[str] = []
        self.kept: list[str] = []

    def _record(self, run: str) -> dict[str, Any]:
        return read_json(f"{self._runs.root}/runs/{run}/run.json", MAX_RECORD_BYTES) or {}

    def interrupted_removals(self) -> None:
        """Remove what interrupted removals of runs have left."""
        for name in _hidden(f"{self._runs.root}/runs"):
            self._remove(f"runs/{name}")

    def parcels(self) -> None:
        """Remove old bundles that no run here names. Each request for a bundle resets its age."""
        named = {
            (each.get("spec") or {}).get(key) for each in self._records for key in ("package", "job_parcel")
        }
        for name in [*names_in(f"{self._runs.root}/parcels"), *_hidden(f"{self._runs.root}/parcels")]:
            if name not in named and self._is_old(f"parcels/{name}"):
                self._remove(f"parcels/{name}")

    def agents(self) -> None:
        """Remove unused agents of other versions. A client that needs one sends it again."""
        for folder in ("agents", "agents/__pycache__"):
            for name in names_in(f"{self._runs.root}/{folder}"):
                is_file = os.path.isfile(f"{self._runs.root}/{folder}/{name}")
                if (
                    is_file
                    and not name.startswith(self._digest)
                    and self._is_old(f"{folder}/{name}", "st_atime")
                ):
                    self._remove(f"{folder}/{name}")

    def environments(self) -> None:
        """Remove old virtual environments that no run here names."""
        named = {
            os.path.basename(host["environment"])
            for each in self._records
            for host in each.get("hosts") or ()
            if host.get("environment")
        }
        for name in names_in(f"{self._runs.root}/venvs"):
            if name not in named and self._is_old(f"venvs/{name}"):
                self._remove(f"venvs/{name}")

    def credentials(self) -> None:
        """Empty the files with workers' cluster credentials in runs whose owner has vanished."""
        for run in names_in(f"{self._runs.root}/runs"):
            path = f"{self._runs.root}/runs/{run}/credentials.json"
            try:
                is_forgotten = os.stat(path).st_size and os.stat(path).st_mtime < self._forgotten
                if is_forgotten and not self._runs.alive(run):
                    os.truncate(path, 0)
                    self.removed.append(f"runs/{run}/credentials.json")
            except FileNotFoundError:
                continue
            except OSError as error:
                self.kept.append(f"{path}: {error.strerror}")

    def _is_old(self, path: str, time_of: str = "st_mtime") -> bool:
        try:
            return bool(getattr(os.lstat(f"{self._runs.root}/{path}"), time_of) < self._oldest)
        except OSError:
            return False

    def _remove(self, path: str) -> None:
        whole = f"{self._runs.root}/{path}"
        try:
            if os.path.isdir(whole) and not os.path.islink(whole):
                is_gone = remove_tree(whole)
            else:
                os.unlink(whole)
                is_gone = True
        except OSError as error:
            self.kept.append(f"{whole}: {error.strerror}")
            return
        if is_gone:
            self.removed.append(path)
        else:
            self.kept.append(f"{whole}: some of it cannot be deleted")


def _hidden(directory: str) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return iter(())
    return iter(sorted(name for name in names if name.startswith(".")))
