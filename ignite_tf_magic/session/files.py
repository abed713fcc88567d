"""What a person does with files in igfs: list, copy, move, remove, check, keep in step with a directory, mount.

An address is igfs:///path or /path (the configured or the embedded cluster) or igfs://HOST:PORT/path. The notebook
and the shell are thin views of this module, as of `session`; they take no decisions of their own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.config.options import ConnectOptions, state_dir
from ignite_tf_magic.errors import InvalidPath, MountError, PathIsDirectory, PathNotDirectory, TransferError
from ignite_tf_magic.igfs import fsck, mount, paths, places
from ignite_tf_magic.igfs.addresses import cluster_of, given_cluster, name_of_file_system
from ignite_tf_magic.igfs.fsck import FsckReport
from ignite_tf_magic.igfs.layout import FileNode, Node
from ignite_tf_magic.igfs.places import CopyLocation, IgfsPlace, LocalPlace, Tree
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.launch.spawner import own_python
from ignite_tf_magic.session import start_embedded

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

_READ_BYTES = 4 * 1024 * 1024
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


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where an address leads."""

    volume: Volume
    authority: str
    path: paths.Path

    def info(self, names: paths.Path, node: Node) -> FileInfo:
        entry = places.entry_of(node)
        return FileInfo(self.address(names), entry.num_bytes, entry.mtime_ns)

    def address(self, names: paths.Path = ()) -> str:
        start = f"{paths.SCHEME}://{self.authority}" if self.authority else ""
        return start + paths.render((*self.path, *names))

    def tree(self) -> Tree:
        return {names: places.entry_of(node) for names, node in places.walk(self.volume, self.path)}

    def place(self) -> IgfsPlace:
        return IgfsPlace(self.volume, self.path, self.authority)

    def is_directory(self) -> bool:
        try:
            return not isinstance(self.volume.stat(self.path), FileNode)
        except FileNotFoundError:
            return False


@dataclass(frozen=True, slots=True)
class _Copy:
    """One source of a copying, and where it goes."""

    source: CopyLocation
    target: CopyLocation
    tree: Tree

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes or 0 for entry in self.tree.values())

    @property
    def num_files(self) -> int:
        return sum(not entry.is_directory for entry in self.tree.values())


class Files(Closing):
    """The files of the clusters that addresses name. Close it, or use it as a context manager.

    Connects when first used, and starts the embedded cluster when igfs:/// means that. Wherever
    it reads, * and ? and [a-z] stand for parts of names, and ** for directories at any depth.

    Args:
        report: Called with one line at a time about what takes long, or was left out.
    """

    def __init__(self, *, report: Report) -> None:
        self._report = report
        self._volumes: dict[str, Volume] = {}

    def close(self) -> None:
        """Hang up."""
        for volume in self._volumes.values():
            volume.close()

    def listing(self, address: str, *, recursive: bool = False) -> list[FileInfo]:
        """List a directory, sorted by name; of a file, the file itself."""
        found = []
        for spot in self._expand(address):
            if recursive:
                found += [
                    spot.info(names, node) for names, node in places.walk(spot.volume, spot.path) if names
                ]
            elif spot.is_directory():
                entries = (entry for page in spot.volume.entries(spot.path) for entry in page)
                found += [spot.info((name,), node) for name, node in entries]
            if not found or not spot.is_directory():
                node = spot.volume.stat(spot.path)
                found += [spot.info((), node)] if isinstance(node, FileNode) else []
        return sorted(found, key=lambda info: info.path)

    def usage(self, address: str) -> list[Usage]:
        """Add up what lies in a directory: one answer for each entry, and the last for the whole."""
        answers = []
        for spot in self._expand(address):
            sums: dict[paths.Path, tuple[int, int]] = {}
            for names, node in places.walk(spot.volume, spot.path):
                size = node.size if isinstance(node, FileNode) else 0
                for top in {names[:1], ()}:
                    num_bytes, num_files = sums.get(top, (0, 0))
                    sums[top] = num_bytes + size, num_files + isinstance(node, FileNode)
            for top in [*sorted(sums.keys() - {()}), ()]:
                answers.append(Usage(spot.address(top), *sums[top]))
        return answers

    def read(self, address: str) -> Iterator[memoryview]:
        """Yield the content of files, one after the other; a chunk is good until the next one is asked for."""
        for spot in self._expand(address):
            yield from spot.place().read(())

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
        spots = [spot for address in addresses for spot in self._expand(address)]
        into = _is_into(target, Path(target).is_dir(), len(spots))
        copies = []
        for spot in spots:
            top = Path(target, *spot.path[-1:]) if into else Path(target)
            _check_kind(spot.is_directory(), spot.address(), recursive=recursive, verb="get")
            tree = spot.tree()
            copies.append(_Copy(spot.place(), LocalPlace(top, self._report), tree))
        return _carry_out(copies, progress)

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
        spot = self._at(address)
        into = _is_into(address, spot.is_directory(), len(sources))
        copies = []
        for source in map(Path, sources):
            _check_kind(source.is_dir(), str(source), recursive=recursive, verb="put")
            place = LocalPlace(source, self._report)
            tree = place.tree()
            if not tree:
                raise TransferError(f"there is no file {source} on this machine")
            name = () if not into else paths.parse(source.name or source.resolve().name)
            copies.append(_Copy(place, _below(spot, name).place(), tree))
        return _carry_out(copies, progress)

    def copy(
        self,
        sources: Sequence[str],
        address: str,
        *,
        recursive: bool = False,
        progress: CopyProgress | None = None,
    ) -> CopyOutcome:
        """Copy files within igfs, or to that of another cluster, into `address` if that is a directory."""
        copies = []
        for spot, target in self._pairs(sources, address):
            _check_kind(spot.is_directory(), spot.address(), recursive=recursive, verb="cp")
            if spot.volume is target.volume and spot.path == target.path[: len(spot.path)]:
                raise InvalidPath("this cannot be copied to itself or below itself", spot.address())
            tree = spot.tree()
            copies.append(_Copy(spot.place(), target.place(), tree))
        return _carry_out(copies, progress)

    def move(self, sources: Sequence[str], address: str) -> None:
        """Move files, or directories with all their contents, each as one step; into `address` if a directory."""
        for spot, target in self._pairs(sources, address):
            if spot.volume is not target.volume:
                raise InvalidPath(
                    "files cannot be moved to another cluster; cp them, then rm", target.address()
                )
            spot.volume.rename(spot.path, target.path)

    def remove(self, address: str, *, recursive: bool = False) -> list[str]:
        """Remove files; with `recursive` directories, each with all its contents as one step.

        Returns:
            What was removed.

        Raises:
            PathIsDirectory: It is a directory, and not `recursive`.
        """
        removed = []
        for spot in self._expand(address):
            if spot.is_directory():
                _check_kind(is_directory=True, name=spot.address(), recursive=recursive, verb="rm")
                spot.volume.remove_directory(spot.path, with_contents=True)
            else:
                spot.volume.remove_file(spot.path)
            removed.append(spot.address())
        return removed

    def make_directory(self, address: str, *, parents: bool = False) -> None:
        """Create a directory; with `parents` also those above it, and none of them needs to be new."""
        spot = self._at(address)
        spot.volume.make_directory(spot.path, parents=parents, exist_ok=parents)

    def check_directory(self, address: str) -> None:
        """Make sure that a directory is there.

        Raises:
            PathNotFound: Nothing is.
            PathNotDirectory: A file is.
        """
        spot = self._at(address)
        spot.volume.directory(spot.path)

    def check(self, address: str, *, repair: bool = False) -> FsckReport:
        """Check a cluster's file system while it is in use; see `igfs.fsck`."""
        return fsck.fsck(self._at(address).volume, repair=repair, report=self._report)

    def create(self, name: str, address: str) -> None:
        """Create another file system beside "igfs"; IGFS_FS_NAME=NAME then chooses it."""
        with Volume(self._options(paths.split_uri(address)[0]), name, create=True) as volume:
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
        outcome = _carry_out([_Copy(here, there, chosen)], progress)
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
        spot = self._at(address)
        mount.mount(
            spot.volume,
            spot.path,
            Path(directory).absolute(),
            f"{paths.SCHEME}://{spot.authority}{paths.render(spot.path)}",
            lambda: self._report(
                f"{address} is shown in {directory} until it is unmounted or this is interrupted"
            ),
        )

    def _place(self, given: str) -> CopyLocation:
        return self._at(given).place() if paths.is_uri(given) else LocalPlace(Path(given), self._report)

    def _pairs(self, sources: Sequence[str], address: str) -> list[tuple[_Spot, _Spot]]:
        target = self._at(address)
        spots = [spot for source in sources for spot in self._expand(source)]
        into = _is_into(address, target.is_directory(), len(spots))
        return [(spot, _below(target, spot.path[-1:] if into else ())) for spot in spots]

    def _expand(self, address: str) -> list[_Spot]:
        spot = self._at(address)
        return [_Spot(spot.volume, spot.authority, path) for path in places.matches(spot.volume, spot.path)]

    def _at(self, address: str) -> _Spot:
        authority = paths.split_uri(address)[0]
        path = paths.parse(address)
        if authority not in self._volumes:
            self._volumes[authority] = Volume(self._options(authority), name_of_file_system())
        return _Spot(self._volumes[authority], authority, path)

    def _options(self, authority: str) -> Callable[[], ConnectOptions]:
        if not authority and given_cluster() is None:
            start_embedded(self._report)
        return partial(cluster_of, authority)


def _below(spot: _Spot, names: paths.Path) -> _Spot:
    return _Spot(spot.volume, spot.authority, (*spot.path, *names))


def _is_into(target: str, is_directory: bool, num_sources: int) -> bool:
    if num_sources > 1 and not is_directory:
        raise PathNotDirectory("several files need a directory that exists to go into", target)
    return is_directory or target.endswith("/")


def _check_kind(is_directory: bool, name: str, *, recursive: bool, verb: str) -> None:
    if is_directory and not recursive:
        raise PathIsDirectory(f"this is a directory; with all that is in it: {verb} -r", name)


def _carry_out(copies: Sequence[_Copy], progress: CopyProgress | None) -> CopyOutcome:
    began, done, total = time.monotonic(), 0, sum(each.num_bytes for each in copies)
    for each in copies:

        def advance(more: int, name: str = each.target.name(())) -> None:
            nonlocal done
            done += more
            if progress:
                progress(name, done, total)

        places.copy(each.source, each.target, each.tree, advance)
    return CopyOutcome(sum(each.num_files for each in copies), done, time.monotonic() - began)


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
    command = own_python("ignite_tf_magic", "fs", "mount", address, str(where))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
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
