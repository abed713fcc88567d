"""Presents the log directories of many runs to TensorBoard as one tree of folders.

TensorBoard without TensorFlow reads through a small table of file systems by scheme
(`tensorboard.compat.tensorflow_stub.io.gfile`). `LogTree` is an entry of that table. `runs:///RUN/train` is the
folder `train` of a run, wherever it is stored, so TensorBoard calls the run `RUN/train`.

TensorBoard stops reading forever after the first unexpected error. `LogTree` therefore only records a location that
cannot be reached, for example while Ignite restarts. What was read stays, and reading continues later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.tensorboard.record import LogSource

SCHEME = "runs"
ROOT = f"{SCHEME}:///"

_Children = dict[str, "_Entry"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file or folder of the tree.

    Attributes:
        uris: Its locations; a folder may have several.
    """

    uris: tuple[str, ...]
    is_dir: bool


class _Unreachable(Exception):
    """A location cannot be read; the reason has been recorded."""


class LogTree:
    """A file system for TensorBoard's table, with only the operations that reading needs.

    Its content is that of the last listing: TensorBoard lists the tree from the root before each reload.
    """

    def __init__(self, sources: Sequence[LogSource], before_reload: Callable[[], None]) -> None:
        self._sources = sources
        self._before_reload = before_reload
        self._children: dict[str, _Children] = {}
        self._troubles: dict[str, str] = {}

    def has_events(self) -> bool:
        """Return whether any listing contained an event file."""
        return any("tfevents" in name for children in list(self._children.values()) for name in children)

    def list_all(self) -> None:
        """List the whole tree once, so that `has_events` and `troubles` cover all of it."""
        from tensorboard.compat.tensorflow_stub.io import gfile

        for _ in gfile.walk(ROOT):
            pass

    def troubles(self) -> list[str]:
        """Return which locations cannot be read at present, and why."""
        by_reason = {reason: uri for uri, reason in sorted(dict(self._troubles).items(), reverse=True)}
        return [f"cannot read {uri}: {reason}" for reason, uri in by_reason.items()]

    # Called by TensorBoard

    def exists(self, filename: str | bytes) -> bool:
        """Return whether the file or folder exists."""
        return self._find(_path(filename)) is not None

    def isdir(self, dirname: str | bytes) -> bool:
        """Return whether the path is a folder."""
        entry = self._find(_path(dirname))
        return entry is not None and entry.is_dir

    def listdir(self, dirname: str | bytes) -> list[str]:
        """Return the names in a folder."""
        path = _path(dirname)
        if not path:
            self._before_reload()
            self._troubles.clear()
            listings = [self._list_source(source) for source in self._sources]
        else:
            uris = self._get(path).uris
            listings = [self._list(uri) for uri in uris]
            if all(listing is None for listing in listings):
                if self._troubles.keys().isdisjoint(uris):
                    self._forget(path)
                raise _not_found(dirname)
        # Keep the known entries if some location could not be read.
        before = self._children.get(path, {}) if self._troubles else {}
        self._children[path] = {**before, **_merge(listing or {} for listing in listings)}
        return sorted(self._children[path])

    def join(self, path: str, *paths: str) -> str:
        """Join a path and further parts."""
        return path + "/" * (not path.endswith("/")) + "/".join(paths)

    def read(
        self,
        filename: str | bytes,
        binary_mode: bool = False,
        size: int | None = None,
        continue_from: Any = None,
    ) -> tuple[bytes | str, Any]:
        """Continue reading at the end of the last call; return the content, and the position for the next call."""
        uri = self._get(_path(filename)).uris[0]
        begin = continue_from or 0
        try:
            with self._asking(uri) as (files, path):
                content = files.cat_file(path, begin, None if size is None else begin + size)
        except (_Unreachable, FileNotFoundError) as error:
            raise _not_found(filename) from error
        return content if binary_mode else content.decode(), begin + len(content)

    def stat(self, filename: str | bytes) -> Any:
        """Return the length of a file, as TensorBoard's `StatData`."""
        from tensorboard.compat.tensorflow_stub.io import gfile

        try:
            with self._asking(self._get(_path(filename)).uris[0]) as (files, path):
                return gfile.StatData(files.size(path))
        except (_Unreachable, FileNotFoundError) as error:
            raise _not_found(filename) from error

    # Lookup and listing

    def _find(self, path: str) -> _Entry | None:
        if not path:
            return _Entry((), is_dir=True)
        folder, _, name = path.rpartition("/")
        return self._children.get(folder, {}).get(name) if self._find(folder) else None

    def _forget(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        siblings = self._children.get(folder, {})
        self._children[folder] = {each: siblings[each] for each in siblings if each != name}

    def _get(self, path: str) -> _Entry:
        entry = self._find(path)
        if entry is None:
            raise _not_found(path)
        return entry

    def _list_source(self, source: LogSource) -> _Children | None:
        """List the entries of a source at the root; None if it cannot be read or does not exist."""
        if source.name:
            return {source.name: _Entry((source.uri,), is_dir=True)}
        parts = source.uri.split("/")
        place = next((i for i, part in enumerate(parts) if "*" in part), None)
        if place is None:
            return self._list(source.uri)
        rest = parts[place + 1 :]
        folders = self._list("/".join(parts[:place]) or "/")
        return folders and {
            name: _Entry(("/".join([entry.uris[0], *rest]),), is_dir=True)
            for name, entry in folders.items()
            if entry.is_dir and fnmatchcase(name, parts[place])
        }

    def _list(self, uri: str) -> _Children | None:
        """List one location; None if it cannot be read or does not exist."""
        try:
            with self._asking(uri) as (files, path):
                files.invalidate_cache(path)
                found = {}
                for info in files.ls(path, detail=True):
                    kind = info["type"]
                    # fsspec lists a local link as neither a file nor a directory.
                    is_dir = kind == "directory" or (kind != "file" and files.isdir(info["name"]))
                    name = info["name"].rstrip("/").rpartition("/")[2]
                    found[name] = _Entry((f"{uri.rstrip('/')}/{name}",), is_dir)
                return found
        except (_Unreachable, FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def _asking(self, uri: str) -> Iterator[tuple[Any, str]]:
        import fsspec

        files = None
        try:
            files, path = fsspec.core.url_to_fs(uri)
            yield files, path
        except (FileNotFoundError, NotADirectoryError):
            self._troubles.pop(uri, None)
            raise
        except (OSError, IgniteTfError, ImportError, ValueError) as error:
            self._troubles[uri] = str(error).partition("\n")[0] or type(error).__name__
            if files is not None:
                files.clear_instance_cache()  # the next call looks up the cluster's address again
            raise _Unreachable from error
        self._troubles.pop(uri, None)


def _merge(listings: Iterator[_Children]) -> _Children:
    merged: _Children = {}
    for listing in listings:
        for name, entry in listing.items():
            known = merged.get(name)
            merged[name] = _Entry(known.uris + entry.uris, known.is_dir) if known else entry
    return merged


def _path(name: str | bytes) -> str:
    text = name.decode() if isinstance(name, bytes) else name
    return text.removeprefix(ROOT).replace(os.sep, "/").strip("/")  # TensorBoard uses the system's separator


def _not_found(name: str | bytes) -> Exception:
    from tensorboard.compat.tensorflow_stub import errors

    error: Exception = errors.NotFoundError(None, None, f"cannot be read now: {name!r}")
    return error
