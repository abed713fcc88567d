"""Files that all workers save under one name, as a script does that says `model.save("model.keras")`.

Workers on one host share its directories. Each writes a file of its own, or a directory when it exports, which then
takes the name: whoever reads finds a whole one, of one of several equal models. Into a file system that all hosts share
the first worker alone exports.
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
    """Let all by which a framework's models are saved put whole files in place."""
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
    """Give a file or directory a name, in place of what had it before; nothing is done where another worker has."""
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
    """Return a function that says of a file which is not there why it may not be, as far as Python can (3.11)."""

    @functools.wraps(original)
    def load_model(filepath: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(filepath, *arguments, **options)
        except (ValueError, OSError) as error:
            if hasattr(error, "add_note") and "://" not in str(filepath) and not Path(filepath).exists():
                error.add_note(
                    f"{filepath} is not on this worker: ModelCheckpoint writes in the first worker only. Where all are "
                    "to read it, name a place that all of them reach: os.environ['IGNITE_TF_RUN_URI'] + '/best.keras'"
                )
            raise

    return load_model


def _is_local_file(filepath: Any) -> bool:
    """Return whether something names one local file; other formats are directories, or several files."""
    if not isinstance(filepath, (str, os.PathLike)):
        return False
    return "://" not in str(filepath) and str(filepath).endswith(_SUFFIXES)
