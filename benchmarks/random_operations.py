"""`python -m benchmarks.random_operations [--steps N]`: the same random operations on igfs and on a local directory.

Once through fsspec and once through a mount, where open files are also renamed, removed, and written through several
handles. Each operation must have the same result on both sides: the data, the size, or the kind of error. At the end
all files are compared, also as another client of the cluster reads them.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from benchmarks import tables
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.session.files import start_mount, unmount

_NAMES = ("a", "b", "ü #c")
_SIZES = (0, 1, 100, 5000, 70_000, 1_200_000)
_CODES = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
}
_MAX_HANDLES = 6
_LOOK_EVERY = 100


class Different(Exception):
    """Results on igfs and on the local directory differ."""


@dataclass
class Play:
    """A sequence of operations on two sides.

    Attributes:
        alike: Errnos that are replaced by others: file systems differ if a file is in the way.
        counts: How often each operation was done, and how often it was refused on both sides.
    """

    rng: random.Random
    alike: Mapping[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def same(self, what: str, here: Callable[[], Any], there: Callable[[], Any]) -> bool:
        """Do the same on both sides. Returns whether it succeeded.

        Raises:
            Different: The results differ.
        """
        self.told.append(what)
        found, wanted = self._outcome(here), self._outcome(there)
        if found != wanted:
            story = "\n".join(self.told[-40:])
            raise Different(f"{what}: igfs {_short(found)}, local {_short(wanted)}; before:\n{story}")
        done = not (isinstance(found, tuple) and found and found[0] == "error")
        self.counts[what.partition(" ")[0] + ("" if done else " refused")] += 1
        return done

    def _outcome(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OSError as error:  # some errors of fsspec have no errno
            known = [code for kind, code in _CODES.items() if isinstance(error, kind)]
            code = error.errno or (known or [0])[0]
            return ("error", self.alike.get(code, code))

    def path(self) -> str:
        """Choose a path of one to three names."""
        return "/".join(self.rng.choice(_NAMES) for _ in range(self.rng.choice([1, 1, 2, 2, 3])))

    def data(self) -> bytes:
        """Choose bytes."""
        return self.rng.randbytes(self.rng.choice(_SIZES))


def _short(outcome: Any) -> str:
    return f"{outcome[:40]!r}... ({len(outcome)})" if isinstance(outcome, bytes) else repr(outcome)


def tree_of(top: Path) -> dict[str, bytes | None]:
    """Return the content of a directory tree; None stands for a directory."""
    return {
        str(path.relative_to(top)): None if path.is_dir() else path.read_bytes()
        for path in sorted(top.rglob("*"))
    }


class MountPlay(Play):
    """Operations of the system; the two sides are a mount and a directory."""

    def play(self, mounted: Path, local: Path, steps: int) -> None:
        """Do this many operations, starting with empty directories."""
        self._sides = mounted, local
        self._handles: list[tuple[int, int]] = []
        for name in _NAMES[1:]:
            self._both(f"mkdir {name}", lambda top, name=name: (top / name).mkdir())  # type: ignore[misc]
        acts: list[Callable[[], None]] = [
            *[self._open] * 6,
            *[self._write] * 6,
            *[self._read] * 5,
            *[self._close] * 4,
            *[self._whole, self._size, self._list, self._cut, self._cut_handle, self._sync],
            *[
                self._make,
                self._make,
                self._remove,
                self._remove,
                self._remove_directory,
                self._move,
                self._move,
            ],
            *[self._set_time, self._end],
        ]
        for step in range(steps):
            self.rng.choice(acts)()
            if step % _LOOK_EVERY == 0:
                self.same("tree", lambda: tree_of(mounted), lambda: tree_of(local))
        while self._handles:
            self._close()
        self.same("tree", lambda: tree_of(mounted), lambda: tree_of(local))

    def _both(self, what: str, call: Callable[[Path], Any]) -> bool:
        mounted, local = self._sides
        return self.same(what, lambda: call(mounted), lambda: call(local))

    def _handle(self, what: str, call: Callable[[int], Any]) -> None:
        while not self._handles:
            self._open()
        here, there = self.rng.choice(self._handles)
        self.same(f"{what} (handle {here})", lambda: call(here), lambda: call(there))

    def _open(self) -> None:
        if len(self._handles) >= _MAX_HANDLES:
            return
        flags = self.rng.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        if flags != os.O_RDONLY:
            flags |= self.rng.choice([0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL])
            flags |= self.rng.choice([0, 0, os.O_TRUNC, os.O_APPEND])
        path, opened = self.path(), []

        def call(top: Path) -> None:
            handle = os.open(top / path, flags, 0o644)
            if (top / path).is_dir():
                os.close(handle)
            else:
                opened.append(handle)

        if self._both(f"open {path} {flags:o}", call) and opened:
            self._handles.append((opened[0], opened[1]))

    def _close(self) -> None:
        if self._handles:
            here, there = self._handles.pop(self.rng.randrange(len(self._handles)))
            self.same(f"close (handle {here})", lambda: os.close(here), lambda: os.close(there))

    def _write(self) -> None:
        data = self.data()
        if self.rng.random() < 0.5:
            self._handle(f"write {len(data)}", lambda handle: os.write(handle, data))
        else:
            offset = self.rng.choice([0, 3, 5000, 80_000, 1_100_000])
            self._handle(f"pwrite {len(data)} at {offset}", lambda handle: os.pwrite(handle, data, offset))

    def _read(self) -> None:
        size, offset = self.rng.choice([10, 5000, 3_000_000]), self.rng.choice([0, 0, 5, 70_000])
        self._handle(f"pread {size} at {offset}", lambda handle: _read_all(handle, size, offset))

    def _cut_handle(self) -> None:
        size = self.rng.choice([0, 10, 60_000])
        self._handle(f"ftruncate {size}", lambda handle: os.ftruncate(handle, size))

    def _sync(self) -> None:
        self._handle("fsync", os.fsync)

    def _end(self) -> None:
        self._handle("fstat", lambda handle: os.fstat(handle).st_size)

    def _whole(self) -> None:
        path, data = self.path(), self.data()
        self._both(f"write_bytes {path} {len(data)}", lambda top: (top / path).write_bytes(data))

    def _size(self) -> None:
        path = self.path()

        def call(top: Path) -> tuple[bool, int]:
            found = (top / path).stat()
            is_directory = (top / path).is_dir()
            return is_directory, 0 if is_directory else found.st_size

        self._both(f"stat {path}", call)

    def _list(self) -> None:
        path = self.path()
        self._both(f"listdir {path}", lambda top: sorted(found.name for found in (top / path).iterdir()))

    def _cut(self) -> None:
        path, size = self.path(), self.rng.choice([0, 10, 60_000, 1_500_000])
        self._both(f"truncate {path} {size}", lambda top: os.truncate(top / path, size))

    def _make(self) -> None:
        path = self.path()
        self._both(f"mkdir {path}", lambda top: (top / path).mkdir())

    def _remove(self) -> None:
        path = self.path()
        self._both(f"unlink {path}", lambda top: (top / path).unlink())

    def _remove_directory(self) -> None:
        path = self.path()
        self._both(f"rmdir {path}", lambda top: (top / path).rmdir())

    def _move(self) -> None:
        source, target = self.path(), self.path()
        self._both(f"rename {source} to {target}", lambda top: (top / source).rename(top / target) and None)

    def _set_time(self) -> None:
        path, time_ns = self.path(), self.rng.randrange(10**18)

        def call(top: Path) -> int:
            os.utime(top / path, ns=(time_ns, time_ns))
            return (top / path).stat().st_mtime_ns

        self._both(f"utime {path}", call)


def _read_all(handle: int, size: int, offset: int) -> bytes:
    data = b""
    while len(data) < size and (part := os.pread(handle, size - len(data), offset + len(data))):
        data += part
    return data


class FsspecPlay(Play):
    """Operations of fsspec; the two sides are igfs and fsspec's local file system."""

    def play(self, fs: Any, top: str, local: Path, steps: int) -> None:
        """Do this many operations, starting with empty directories."""
        self._sides = (fs, top), (fsspec.filesystem("file", auto_mkdir=True), str(local))
        acts: list[Callable[[], None]] = [
            *[self._pipe, self._pipe, self._write, self._write, self._append, self._append, self._fail],
            *[self._cat, self._cat, self._part, self._read, self._info, self._list, self._find, self._glob],
            *[
                self._make,
                self._makedirs,
                self._touch,
                self._remove,
                self._remove_tree,
                self._move,
                self._copy,
            ],
            self._transaction,
        ]
        for step in range(steps):
            self.rng.choice(acts)()
            if step % _LOOK_EVERY == 0:
                self._tree()
        self._tree()

    def _both(self, what: str, call: Callable[[Any, str], Any]) -> bool:
        (fs, top), (other, local) = self._sides
        return self.same(what, lambda: call(fs, top), lambda: call(other, local))

    def _tree(self) -> None:
        def call(fs: Any, top: str) -> dict[str, bytes | None]:
            found = fs.find(top, withdirs=True, detail=True)
            return {
                name.removeprefix(top): None if info["type"] == "directory" else fs.cat_file(name)
                for name, info in found.items()
                if name != top
            }

        self._both("tree", call)

    def _pipe(self) -> None:
        path, data = self.path(), self.data()
        self._both(f"pipe {path} {len(data)}", lambda fs, top: fs.pipe_file(f"{top}/{path}", data))

    def _write(self) -> None:
        path, parts, mode = self.path(), [self.data() for _ in range(3)], self.rng.choice(["wb", "wb", "xb"])

        def call(fs: Any, top: str) -> None:
            with fs.open(f"{top}/{path}", mode) as file:
                for part in parts:
                    file.write(part)

        self._both(f"open-{mode} {path}", call)

    def _append(self) -> None:
        path, data = self.path(), self.data()

        def call(fs: Any, top: str) -> None:
            with fs.open(f"{top}/{path}", "ab") as file:
                file.write(data)

        self._both(f"open-ab {path} {len(data)}", call)

    def _fail(self) -> None:
        """Fail during a write, on igfs only: it must keep the old file, which the local side does not."""
        fs, top = self._sides[0]
        path = f"{top}/{self.path()}"
        if not fs.isfile(path):
            return
        self.told.append(f"fail {path}")
        self.counts["fail"] += 1
        with suppress(ZeroDivisionError), fs.open(path, "w") as file:
            file.write("torn")
            raise ZeroDivisionError

    def _cat(self) -> None:
        path = self.path()
        self._both(f"cat {path}", lambda fs, top: fs.cat_file(f"{top}/{path}"))

    def _part(self) -> None:
        path = self.path()
        start, end = self.rng.choice([(0, 20), (10, 70_000), (60_000, 70_000), (5, None)])
        self._both(f"cat_file {path} {start} {end}", lambda fs, top: fs.cat_file(f"{top}/{path}", start, end))

    def _read(self) -> None:
        path = self.path()

        def call(fs: Any, top: str) -> list[bytes]:
            with fs.open(f"{top}/{path}", "rb") as file:
                first = file.read(100)
                file.seek(-50, os.SEEK_END) if len(first) == 100 else file.seek(0)
                return [first, file.read()]

        self._both(f"open-rb {path}", call)

    def _info(self) -> None:
        path = self.path()

        def call(fs: Any, top: str) -> tuple[Any, ...]:
            info = fs.info(f"{top}/{path}")
            return info["type"], info["size"] if info["type"] == "file" else 0

        self._both(f"info {path}", call)

    def _list(self) -> None:
        path = self.path()
        self._both(
            f"ls {path}",
            lambda fs, top: sorted(n.removeprefix(top) for n in fs.ls(f"{top}/{path}", detail=False)),
        )

    def _find(self) -> None:
        path = self.path()
        self._both(f"find {path}", lambda fs, top: [n.removeprefix(top) for n in fs.find(f"{top}/{path}")])

    def _glob(self) -> None:
        pattern = self.rng.choice(["*", "**", "*/a", "?", "[ab]/*", "**/b"])
        self._both(
            f"glob {pattern}", lambda fs, top: [n.removeprefix(top) for n in fs.glob(f"{top}/{pattern}")]
        )

    def _make(self) -> None:
        path = self.path()
        self._both(f"mkdir {path}", lambda fs, top: fs.mkdir(f"{top}/{path}"))

    def _makedirs(self) -> None:
        path, exist_ok = self.path(), self.rng.random() < 0.5
        self._both(f"makedirs {path}", lambda fs, top: fs.makedirs(f"{top}/{path}", exist_ok=exist_ok))

    def _touch(self) -> None:
        path, truncate = self.path(), self.rng.random() < 0.5
        self._both(f"touch {path}", lambda fs, top: fs.touch(f"{top}/{path}", truncate=truncate))

    def _remove(self) -> None:
        path = self.path()
        self._both(f"rm_file {path}", lambda fs, top: fs.rm_file(f"{top}/{path}"))

    def _remove_tree(self) -> None:
        path = self.path()
        if self.rng.random() < 0.3:
            self._both(f"rm {path}", lambda fs, top: fs.rm(f"{top}/{path}", recursive=True))
        else:
            self._both(f"rmdir {path}", lambda fs, top: fs.rmdir(f"{top}/{path}"))

    def _move(self) -> None:
        """Move a file to where no directory is; file systems differ for directories."""
        source, target = self.path(), self.path()
        (fs, top), _ = self._sides
        if fs.isfile(f"{top}/{source}") and not fs.isdir(f"{top}/{target}") and self._has_parent(target):
            self._both(f"mv {source} {target}", lambda fs, top: fs.mv(f"{top}/{source}", f"{top}/{target}"))

    def _has_parent(self, path: str) -> bool:
        (fs, top), _ = self._sides
        return bool(fs.isdir(f"{top}/{path}".rpartition("/")[0]))

    def _copy(self) -> None:
        source, target = self.path(), self.path()
        (fs, top), _ = self._sides
        if source != target and fs.isfile(f"{top}/{source}") and not fs.isdir(f"{top}/{target}"):
            self._both(
                f"cp {source} {target}", lambda fs, top: fs.cp_file(f"{top}/{source}", f"{top}/{target}")
            )

    def _transaction(self) -> None:
        """Write files in a transaction, in an existing directory."""
        name, data, fails = self.rng.choice(_NAMES), self.data(), self.rng.random() < 0.5
        (igfs, igfs_top), _ = self._sides
        if igfs.isdir(f"{igfs_top}/{name}"):
            return

        def call(fs: Any, top: str) -> None:
            with suppress(ZeroDivisionError), fs.transaction:
                with fs.open(f"{top}/{name}", "wb") as file:
                    file.write(data)
                if fails:
                    raise ZeroDivisionError

        self._both(f"transaction {name} {fails}", call)


def main(argv: Sequence[str] | None = None) -> None:
    """Play both, and write the outcome."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_operations", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--steps", type=int, default=10_000, metavar="N", help="of each kind (default: 10,000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="SEED")
    parser.add_argument("--only", choices=["fsspec", "mount"])
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="operations-") as folder:
        home = Path(folder) / "embedded"
        os.environ["IGNITE_TF_HOME"] = folder
        try:
            cluster = ensure_up(
                EmbeddedOptions(heap="256m", region="512m"), Lifetime.UNTIL_IDLE, print, home
            ).cluster
            os.environ["IGNITE_TF_CLUSTER"] = ",".join(map(str, cluster.connect_options.endpoints))
            rows = [
                play(Path(folder), arguments.steps, arguments.seed)
                for play in (through_fsspec, through_a_mount)
                if arguments.only in (None, play.__name__.rpartition("_")[2])
            ]
        finally:
            down(home, delete_data=True)
    tables.write(arguments.results, "operations", rows)
    print(json.dumps(rows, indent=1), flush=True)


def through_fsspec(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Play through fsspec. Returns the row of results."""
    local = folder / "fsspec"
    local.mkdir()
    fs = IgfsFileSystem(skip_instance_cache=True)
    top = f"/fsspec-{seed}"
    fs.mkdir(top)
    play = FsspecPlay(random.Random(seed), {errno.ENOTDIR: errno.EEXIST})
    try:
        play.play(fs, top, local, steps)
    finally:
        fs.volume.close()
        shutil.rmtree(local)
    return {"case": "fsspec", "steps": steps, **dict(sorted(play.counts.items()))}


def through_a_mount(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Play through a mount. Returns the row of results."""
    local, mounted = folder / "local", folder / "mounted"
    local.mkdir()
    mounted.mkdir()
    fs = IgfsFileSystem(skip_instance_cache=True)
    top = f"/mount-{seed}"
    fs.mkdir(top)
    start_mount(f"igfs://{top}", str(mounted), report=print)
    play = MountPlay(random.Random(seed))
    try:
        play.play(mounted, local, steps)
        for path, content in tree_of(local).items():
            if content is not None and fs.cat_file(f"{top}/{path}") != content:
                raise Different(f"another client reads something else of {path}")
    finally:
        for handles in play._handles:
            for handle in handles:
                with suppress(OSError):
                    os.close(handle)
        unmount(str(mounted))
        fs.volume.close()
        shutil.rmtree(local)
    return {"case": "mount", "steps": steps, **dict(sorted(play.counts.items()))}


if __name__ == "__main__":
    main()
