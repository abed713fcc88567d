"""Commands on files in igfs: list, copy, move, remove, check, synchronize with a directory, mount.

An address is igfs:///path or /path (the configured or the embedded cluster) or igfs://HOST:PORT/path. The notebook
and the shell are thin views of this module, as of `session`, and make no decisions of their own.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import InvalidPath, MountError, PathIsDirectory, PathNotDirectory, TransferError
from ignite_tf_magic.igfs import fsck, mount, paths, places
from ignite_tf_magic.igfs.addresses import cluster_of, given_cluster
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.igfs.fsck import FsckReport
from ignite_tf_magic.igfs.places import CopyLocation, IgfsPlace, LocalPlace, Transfer
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.launch.spawner import own_python, spawn
from ignite_tf_magic.session import start_embedded
from ignite_tf_magic.settings.options import state_dir

__all__ = [
    "CopyOutcome",
    "CopyProgress",
    "FileInfo",
    "Files",
    "FsckReport",
    "SyncOutcome",
    "Usage",
    "start_mount",
    "unmount",
]

_MOUNT_S = 60.0
_POLL_S = 0.05

Report = Callable[[str], None]
# Called with the name of the file being copied, the bytes copied so far and the total bytes.
CopyProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or directory of igfs.

    Attributes:
        path: Address that the next command accepts.
        num_bytes: Size of a file; None for a directory.
        mtime_ns: When a file was last written, or a directory was created, in ns since 1970.
    """

    path: str
    num_bytes: int | None
    mtime_ns: int

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory."""
        return self.num_bytes is None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        kind = "directory" if self.is_directory else "file"
        return {"path": self.path, "type": kind, "size": self.num_bytes or 0, "mtime_ns": self.mtime_ns}


@dataclass(frozen=True, slots=True)
class Usage:
    """The number and total size of the files at a path and below it."""

    path: str
    num_bytes: int
    num_files: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return {"path": self.path, "size": self.num_bytes, "files": self.num_files}


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The amount of data copied, and the time it took."""

    num_files: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """The changes that a sync made at the target.

    Attributes:
        copied: Files and directories that were copied, by name below the target.
        removed: Names that were removed from the target because the source does not have them.
    """

    copied: tuple[str, ...]
    removed: tuple[str, ...]
    num_bytes: int


class Files(Closing):
    """The files of the clusters named by addresses. Close it, or use it as a context manager.

    Connects on first use, and starts the embedded cluster if igfs:/// refers to it. Addresses that are read
    may contain patterns: * ? and [a-z] match parts of names, and ** matches directories at any depth.

    Args:
        report: Called with one line at a time about slow operations and skipped files.
    """

    def __init__(self, *, report: Report) -> None:
        self._report = report
        self._clusters: dict[str, IgfsFileSystem] = {}

    def close(self) -> None:
        """Close the connections."""
        for files in self._clusters.values():
            files.volume.close()

    def listing(self, address: str, *, recursive: bool = False) -> list[FileInfo]:
        """List a directory, sorted by name; for a file, list the file itself."""
        listed = []
        for place in self._expand(address):
            files, path = place.files, paths.render(place.path)
            infos = [files.info(path)]
            if infos[0]["type"] == "directory":
                infos = (
                    list(files.find(path, withdirs=True, detail=True).values())[1:]
                    if recursive
                    else files.ls(path)
                )
            listed += [_file_info(place, info) for info in infos]
        return sorted(listed, key=lambda info: info.path)

    def usage(self, address: str) -> list[Usage]:
        """Return the usage of each entry of a directory; the last item is the total."""
        answers = []
        for place in self._expand(address):
            place.check()
            sums: dict[paths.Path, tuple[int, int]] = {}
            for names, entry in place.tree().items():
                for top in {names[:1], ()}:
                    num_bytes, num_files = sums.get(top, (0, 0))
                    sums[top] = num_bytes + (entry.num_bytes or 0), num_files + (not entry.is_directory)
            for top in [*sorted(sums.keys() - {()}), ()]:
                answers.append(Usage(_address(place.below(top)), *sums[top]))
        return answers

    def read(self, address: str) -> Iterator[memoryview]:
        """Yield the content of files, one after the other. A chunk is valid until the next one is requested."""
        for place in self._expand(address):
            yield from place.read()

    def get(
        self,
        addresses: Sequence[str],
        target: str,
        *,
        recursive: bool = False,
        progress: CopyProgress | None = None,
    ) -> CopyOutcome:
        """Copy files with their times to this machine, into `target` if that is a directory.

        Only complete files appear.

        Raises:
            PathIsDirectory: A source is a directory, and `recursive` is false.
            TransferError: A local file cannot be written.
        """
        sources = [place for address in addresses for place in self._expand(address)]
        pairs = _pairs(sources, self._local(target), target)
        return _copy(pairs, "get", recursive, progress)

    def put(
        self,
        sources: Sequence[str],
        address: str,
        *,
        recursive: bool = False,
        progress: CopyProgress | None = None,
    ) -> CopyOutcome:
        """Copy local files to igfs, into `address` if that is a directory. Only complete files appear.

        Raises:
            PathIsDirectory: A source is a directory, and `recursive` is false.
            PathNotFound: There is no directory to copy into.
            TransferError: A local file cannot be read.
        """
        pairs = _pairs([self._local(source) for source in sources], self._at(address), address)
        return _copy(pairs, "put", recursive, progress)

    def copy(
        self,
        sources: Sequence[str],
        address: str,
        *,
        recursive: bool = False,
        progress: CopyProgress | None = None,
    ) -> CopyOutcome:
        """Copy files within igfs or to another cluster's igfs, into `address` if that is a directory."""
        pairs = self._pairs_in_igfs(sources, address)
        for source, target in pairs:
            if source.files is target.files and source.path == target.path[: len(source.path)]:
                raise InvalidPath("this cannot be copied to itself or below itself", _address(source))
        return _copy(pairs, "cp", recursive, progress)

    def move(self, sources: Sequence[str], address: str) -> None:
        """Move files, or directories with all contents, each atomically; into `address` if that is a directory."""
        for source, target in self._pairs_in_igfs(sources, address):
            if source.files is not target.files:
                raise InvalidPath(
                    "files cannot be moved to another cluster; cp them, then rm", _address(target)
                )
            source.files.volume.rename(source.path, target.path)

    def remove(self, address: str, *, recursive: bool = False) -> list[str]:
        """Remove files; with `recursive` also directories, each atomically with all its contents.

        Returns:
            The addresses that were removed.

        Raises:
            PathIsDirectory: It is a directory, and `recursive` is false.
        """
        removed = []
        for place in self._expand(address):
            if place.is_directory():
                _check_kind(place, "rm", recursive=recursive)
                place.files.volume.remove_directory(place.path, with_contents=True)
            else:
                place.files.volume.remove_file(place.path)
            removed.append(_address(place))
        return removed

    def make_directory(self, address: str, *, parents: bool = False) -> None:
        """Create a directory. With `parents` also create missing parents, and accept a directory that exists."""
        place = self._at(address)
        place.files.volume.make_directory(place.path, parents=parents, exist_ok=parents)

    def check_directory(self, address: str) -> None:
        """Raise an error unless the address is a directory.

        Raises:
            PathNotFound: Nothing exists there.
            PathNotDirectory: It is a file.
        """
        place = self._at(address)
        place.files.volume.directory(place.path)

    def check(self, address: str, *, repair: bool = False) -> FsckReport:
        """Check a cluster's file system while it is in use; see `igfs.fsck`."""
        return fsck.fsck(self._at(address).files.volume, repair=repair, report=self._report)

    def create(self, name: str, address: str) -> None:
        """Create another file system beside "igfs"; IGFS_FS_NAME=NAME selects it."""
        authority = self._at(address).authority
        with Volume(partial(cluster_of, authority), name, create=True) as volume:
            volume.store.prepare_to_write()

    def sync(
        self, source: str, target: str, *, delete: bool = False, progress: CopyProgress | None = None
    ) -> SyncOutcome:
        """Copy new and newer files from igfs to a local directory or the reverse. Only complete files appear.

        A file is skipped if it has the same size and time on both sides, or is newer at the target.

        Args:
            source: igfs:///PATH or a local directory.
            target: The other of the two; created if it does not exist.
            delete: Remove files that only the target has; an empty source is then refused.
            progress: Called with the progress of the copy.

        Raises:
            TransferError: A local file cannot be read or written, or both sides are in igfs, or both are local.
        """
        if paths.is_uri(source) == paths.is_uri(target):
            raise TransferError(
                "sync copies between igfs and this machine; pass one igfs:///PATH and one local directory"
            )
        here, there = self._place(source), self._place(target)
        tree, known = here.tree(), there.tree()
        if not tree or not tree[()].is_directory:
            raise PathNotDirectory("there is no such directory to copy from", source)
        if delete and len(tree) == 1 and len(known) > 1:
            raise TransferError(
                f"{source} is empty: nothing was removed from {target}; if that is meant, remove it yourself"
            )
        chosen = places.newer(tree, known)
        outcome = _carry_out([Transfer(here, there, chosen)], progress)
        removed = places.surplus(tree, known) if delete else []
        for names in removed:
            there.remove(names)
        copied = tuple("/".join(names) for names in chosen if names)
        return SyncOutcome(copied, tuple(map("/".join, removed)), outcome.num_bytes)

    def mount(self, address: str, directory: str) -> None:
        """Mount a directory of igfs at a local one; blocks until it is unmounted or interrupted.

        Reports a line when the mount is ready.

        Raises:
            MountError: FUSE is missing or refused the mount.
        """
        place = self._at(address)
        mount.mount(
            place.files.volume,
            place.path,
            Path(directory).absolute(),
            place.name(),
            lambda: self._report(
                f"{address} is shown in {directory} until it is unmounted or this is interrupted"
            ),
        )

    def _place(self, given: str) -> CopyLocation:
        return self._at(given) if paths.is_uri(given) else self._local(given)

    def _local(self, given: str) -> LocalPlace:
        return LocalPlace(Path(given), self._report)

    def _pairs_in_igfs(self, sources: Sequence[str], address: str) -> list[tuple[IgfsPlace, IgfsPlace]]:
        target = self._at(address)
        return _pairs([place for source in sources for place in self._expand(source)], target, address)

    def _expand(self, address: str) -> list[IgfsPlace]:
        place = self._at(address)
        return [
            replace(place, path=paths.parse(name)) for name in place.files.matches(paths.render(place.path))
        ]

    def _at(self, address: str) -> IgfsPlace:
        authority = paths.split_uri(address)[0]
        path = paths.parse(address)
        if authority not in self._clusters:
            if not authority and given_cluster() is None:
                start_embedded(self._report)
            node = paths.endpoint_of(authority) if authority else None
            host, port = (node.host, node.port) if node else (None, None)
            self._clusters[authority] = IgfsFileSystem(host, port, auto_mkdir=False, skip_instance_cache=True)
        return IgfsPlace(self._clusters[authority], path, authority)


_Source = TypeVar("_Source", IgfsPlace, LocalPlace)
_Target = TypeVar("_Target", IgfsPlace, LocalPlace)


def _pairs(sources: Sequence[_Source], target: _Target, given: str) -> list[tuple[_Source, _Target]]:
    """Pair each source with its target: a name below the target if that is a directory, else the target itself."""
    is_directory = target.is_directory()
    if len(sources) > 1 and not is_directory:
        raise PathNotDirectory("several files need an existing directory as their target", given)
    if is_directory or given.endswith("/"):
        return [(source, target.below(source.last_name())) for source in sources]
    return [(source, target) for source in sources]


def _copy(
    pairs: Sequence[tuple[CopyLocation, CopyLocation]],
    verb: str,
    recursive: bool,
    progress: CopyProgress | None,
) -> CopyOutcome:
    transfers = []
    for source, target in pairs:
        source.check()
        _check_kind(source, verb, recursive=recursive)
        transfers.append(Transfer(source, target, source.tree()))
    return _carry_out(transfers, progress)


def _check_kind(place: CopyLocation, verb: str, *, recursive: bool) -> None:
    if place.is_directory() and not recursive:
        name = _address(place) if isinstance(place, IgfsPlace) else place.name()
        raise PathIsDirectory(f"this is a directory; with its contents: {verb} -r", name)


def _carry_out(transfers: Sequence[Transfer], progress: CopyProgress | None) -> CopyOutcome:
    began, done, total = time.monotonic(), 0, sum(each.num_bytes for each in transfers)
    for each in transfers:

        def advance(more: int, name: str = each.target.name()) -> None:
            nonlocal done
            done += more
            if progress:
                progress(name, done, total)

        each.carry_out(advance)
    return CopyOutcome(sum(each.num_files for each in transfers), done, time.monotonic() - began)


def _address(place: IgfsPlace) -> str:
    """Return the address that the next command accepts: only a path if it is in the configured cluster."""
    return place.name() if place.authority else paths.render(place.path)


def _file_info(place: IgfsPlace, info: Mapping[str, Any]) -> FileInfo:
    num_bytes = info["size"] if info["type"] == "file" else None
    address = _address(replace(place, path=paths.parse(info["name"])))
    return FileInfo(address, num_bytes, info["mtime_ns"])


def start_mount(address: str, directory: str, *, report: Report) -> Path:
    """Mount in a separate process, which stays until `unmount`. Returns when the directory shows igfs.

    Returns:
        The path of the process's log.

    Raises:
        MountError: The mount failed; the message contains the process's output.
    """
    with Files(report=report) as files:  # reports slow steps to the caller instead of to the log
        files.check_directory(address)
    where = Path(directory).absolute()
    mount.library(where)
    logs = state_dir() / "mounts"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = logs / f"{where.name}-{hashlib.sha256(os.fsencode(where)).hexdigest()[:8]}.log"
    log.unlink(missing_ok=True)
    command = own_python("ignite_tf_magic", "fs", "mount", address, str(where))
    process = spawn(command, cwd=Path.cwd(), env=os.environ, output=log)
    threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it ends
    deadline = time.monotonic() + _MOUNT_S
    while not mount.is_mounted(where):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            said = log.read_text(encoding="utf-8", errors="replace").strip().removeprefix("error: ")
            raise MountError(
                said or f"igfs could not be mounted in {where}; the process ended without a message"
            )
        time.sleep(_POLL_S)
    return log


def unmount(directory: str) -> None:
    """Unmount a directory; returns when it shows its own content again.

    Raises:
        MountError: igfs is not mounted there, or the mount is in use.
    """
    mount.unmount(Path(directory).absolute())
