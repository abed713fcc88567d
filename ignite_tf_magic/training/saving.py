"""Lets all workers save a model under one name, as a script with `model.save("model.keras")` does.

Workers on one host share its directories. Each writes its own temporary file, or a directory for an export, and then
renames it to the common name. So a reader always finds a complete file, of one of several equal models. Exports to a
URL, which all hosts share, are written by the first worker only.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_SUFFIXES = (".keras", ".h5", ".hdf5")


def hook_saving(module: Any, worker: int) -> None:
    """Make all save functions of a framework put complete files in place."""
    ways = [(module.Model, "save"), (module.Model, "save_weights")]
    ways += [(module.saving, "save_model"), (module.models, "save_model")]
    for owner, name in ways:
        setattr(owner, name, _whole(getattr(owner, name), worker))
    if hasattr(module.Model, "export"):
        module.Model.export = _exported(module.Model.export, worker)
    for owner in (module.saving, module.models) if worker else ():
        owner.load_model = _with_advice(owner.load_model)


def _whole(original: Callable[..., Any], worker: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(model: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
        is_kept = (arguments[:1] or (options.get("overwrite", True),)) == (False,)
        if is_kept or not _is_local_file(filepath):
            return original(model, filepath, *arguments, **options)
        path = Path(filepath)
        own = path.with_name(f".worker-{worker}-{path.name}")
        try:
            found = original(model, type(filepath)(own), *arguments, **options)
            own.replace(path)
        finally:
            own.unlink(missing_ok=True)
        return found

    return save


def _exported(original: Callable[..., Any], worker: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def export(model: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
        if "://" in str(filepath):
            return original(model, filepath, *arguments, **options) if worker == 0 else None
        path = Path(filepath)
        own, before = path.with_name(f".worker-{worker}-{path.name}"), _identity(path)
        try:
            found = original(model, type(filepath)(own), *arguments, **options)
            _put_in_place(own, path, before)
        finally:
            _remove(own)
        return found

    return export


def _put_in_place(own: Path, path: Path, before: tuple[int, int] | None) -> None:
    """Rename a file or directory to its final name, replacing the earlier one.

    If another worker has replaced it in the meantime, do nothing.
    """
    while (now := _identity(path)) in (None, before):
        if now is not None:
            gone = own.with_name(f"{own.name}-before")
            _remove(gone)  # left by a worker that was killed here
            with suppress(FileNotFoundError):
                path.rename(gone)
                _remove(gone)
        try:
            own.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                raise
        else:
            return


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _with_advice(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loading function that adds advice to the error for a missing file (Python 3.11 and later)."""

    @functools.wraps(original)
    def load_model(filepath: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(filepath, *arguments, **options)
        except (ValueError, OSError) as error:
            if hasattr(error, "add_note") and "://" not in str(filepath) and not Path(filepath).exists():
                error.add_note(
                    f"{filepath} is not on this worker: ModelCheckpoint writes in the first worker only. "
                    "If all workers are to read it, use a path that all of them can reach: "
                    "os.environ['IGNITE_TF_RUN_URI'] + '/best.keras'"
                )
            raise

    return load_model


def _is_local_file(filepath: Any) -> bool:
    """Return whether an argument names a single local file. Other formats are directories or several files."""
    if not isinstance(filepath, (str, os.PathLike)):
        return False
    return "://" not in str(filepath) and str(filepath).endswith(_SUFFIXES)
