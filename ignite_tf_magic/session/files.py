"""Commands on files in igfs: list, copy, move, remove, check, keep in step with a directory, mount.

An address is igfs:///path or /path (the configured or the embedded cluster) or igfs://HOST:PORT/path. The notebook
and the shell are thin views of this module, as of `session`; they take no decisions of their own.
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
# Told what is being copied, the bytes copied so far and all bytes.
CopyProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or directory of igfs.

    Attributes:
        path: As it can be given to the next command.
        num_bytes: Size of a file; None for a directory.
        mtime_ns: When a file was last written to, or a directory was made; since 1970.
    """

    path: str
    num_bytes: int | None
    mtime_ns: int

    @property
    def is_directory(self) -> bool:
        """Whether it holds others."""
        return self.num_bytes is None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        kind = "directory" if self.is_directory else "file"
        return {"path": self.path, "type": kind, "size": self.num_bytes or 0, "mtime_ns": self.mtime_ns}


@dataclass(frozen=True, slots=True)
class Usage:
    """How much lies at a path and below it."""

    path: str
    num_bytes: int
    num_files: int

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"path": self.path, "size": self.num_bytes, "files": self.num_files}


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """What was copied."""

    num_files: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """What was changed at the target.

    Attributes:
        copied: Files and directories that were copied, by name below the target.
        removed: What was removed there, because the source has nothing of that name.
    """

    copied: tuple[str, ...]
    removed: tuple[str, ...]
    num_bytes: int


class Files(Closing):
    """The files of the clusters that addresses name. Close it, or use it as a context manager.

    Connects when first used, and starts the embedded cluster when igfs:/// means that. Wherever
    it reads, * and ? and [a-z] stand for parts of names, and ** for directories at any depth.

    Args:
        report: Called with one line at a time about what takes long, or was left out.
    """

    def __init__(self, *, report: Report) -> None:
        self._report = report
        self._clusters: dict[str, IgfsFileSystem] = {}

    def close(self) -> None:
        """Hang up."""
        for files in self._clusters.values():
            files.volume.close()

    def listing(self, address: str, *, recursive: bool = False) -> list[FileInfo]:
        """List a directory, sorted by name; of a file, the file itself."""
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
        """Add up what lies in a directory: one answer for each entry, and the last for the whole."""
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
        """Yield the content of files, one after the other; a chunk is good until the next one is asked for."""
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
        """Copy files to this machine, into `target` if that is a directory. Whole files only, with their times.

        Raises:
            PathIsDirectory: A source is a directory, and not `recursive`.
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
        """Copy files of this machine to igfs, into `address` if that is a directory. Whole files only.

        Raises:
            PathIsDirectory: A source is a directory, and not `recursive`.
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
        """Copy files within igfs, or to that of another cluster, into `address` if that is a directory."""
        pairs = self._pairs_in_igfs(sources, address)
        for source, target in pairs:
            if source.files is target.files and source.path == target.path[: len(source.path)]:
                raise InvalidPath("this cannot be copied to itself or below itself", _address(source))
        return _copy(pairs, "cp", recursive, progress)

    def move(self, sources: Sequence[str], address: str) -> None:
        """Move files, or directories with all their contents, each as one step; into `address` if a directory."""
        for source, target in self._pairs_in_igfs(sources, address):
            if source.files is not target.files:
                raise InvalidPath(
                    "files cannot be moved to another cluster; cp them, then rm", _address(target)
                )
            source.files.volume.rename(source.path, target.path)

    def remove(self, address: str, *, recursive: bool = False) -> list[str]:
        """Remove files; with `recursive` directories, each with all its contents as one step.

        Returns:
            What was removed.

        Raises:
            PathIsDirectory: It is a directory, and not `recursive`.
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
        """Create a directory; with `parents` also those above it, and none of them needs to be new."""
        place = self._at(address)
        place.files.volume.make_directory(place.path, parents=parents, exist_ok=parents)

    def check_directory(self, address: str) -> None:
        """Make sure that a directory is there.

        Raises:
            PathNotFound: Nothing is.
            PathNotDirectory: A file is.
        """
        place = self._at(address)
        place.files.volume.directory(place.path)

    def check(self, address: str, *, repair: bool = False) -> FsckReport:
        """Check a cluster's file system while it is in use; see `igfs.fsck`."""
        return fsck.fsck(self._at(address).files.volume, repair=repair, report=self._report)

    def create(self, name: str, address: str) -> None:
        """Create another file system beside "igfs"; IGFS_FS_NAME=NAME then chooses it."""
        authority = self._at(address).authority
        with Volume(partial(cluster_of, authority), name, create=True) as volume:
            volume.store.prepare_to_write()

    def sync(
        self, source: str, target: str, *, delete: bool = False, progress: CopyProgress | None = None
    ) -> SyncOutcome:
        """Copy what is new or newer from igfs to a local directory, or from there to igfs, whole files only.

        A file is left alone when it has the same size and time on both sides, or is newer at the target.

        Args:
            source: igfs:///PATH or a local directory.
            target: The other of the two; made if need be.
            delete: Remove what only the target has; an empty source is refused then.
            progress: Told how far it is.

        Raises:
            TransferError: A local file cannot be read or written, or both sides are of one kind.
        """
        if paths.is_uri(source) == paths.is_uri(target):
            raise TransferError(
                "sync is between igfs and this machine: give one igfs:///PATH and one directory"
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
        """Show a directory of igfs in a local one; blocks until it is unmounted or interrupted.

        Tells when it begins to be shown.

        Raises:
            MountError: FUSE is not there, or refused.
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
    """Say where each source goes: into the target if that is a directory, else that is what it becomes."""
    is_directory = target.is_directory()
    if len(sources) > 1 and not is_directory:
        raise PathNotDirectory("several files need a directory that exists to go into", given)
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
        raise PathIsDirectory(f"this is a directory; with all that is in it: {verb} -r", name)


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
    """Return what leads there in the next command: a path alone where the configured cluster is meant."""
    return place.name() if place.authority else paths.render(place.path)


def _file_info(place: IgfsPlace, info: Mapping[str, Any]) -> FileInfo:
    num_bytes = info["size"] if info["type"] == "file" else None
    address = _address(replace(place, path=paths.parse(info["name"])))
    return FileInfo(address, num_bytes, info["mtime_ns"])


def start_mount(address: str, directory: str, *, report: Report) -> Path:
    """Mount in a process of its own, which stays until `unmount`; returns when the directory shows igfs.

    Returns:
        The process's log.

    Raises:
        MountError: It could not be mounted; with what the process said.
    """
    with Files(report=report) as files:  # what takes long is told here, not in the log
        files.check_directory(address)
    where = Path(directory).absolute()
    mount.library(where)
    logs = state_dir() / "mounts"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = logs / f"{where.name}-{hashlib.sha256(os.fsencode(where)).hexdigest()[:8]}.log"
    log.unlink(missing_ok=True)
    command = own_python("ignite_tf_magic", "fs", "mount", address, str(where))
    process = spawn(command, cwd=Path.cwd(), env=os.environ, output=log)
    threading.Thread(target=process.wait, daemon=True).start()  # or it would stay a zombie when it has ended
    deadline = time.monotonic() + _MOUNT_S
    while not mount.is_mounted(where):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            said = log.read_text(encoding="utf-8", errors="replace").strip().removeprefix("error: ")
            raise MountError(
                said or f"igfs could not be mounted in {where}; the process ended without a word"
            )
        time.sleep(_POLL_S)
    return log


def unmount(directory: str) -> None:
    """End a mount; returns when the directory is what it was.

    Raises:
        MountError: igfs is not mounted there, or somebody uses it.
    """
    mount.unmount(Path(directory).absolute())
