"""Reads and writes an agent's files without following links, safe against full disks and torn writes."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

PADDED_BYTES = 4096
MIN_FREE_BYTES = 16 << 20  # room for a job's records and the beginning of its output
_MIN_FREE_INODES = 64
_FULL_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_MAX_PATH_CHARS = 1024


class Refused(Exception):
    """A refused operation, which the relay sends as its answer."""

    def __init__(self, kind: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.facts = facts


def refusal(error: OSError, what: str) -> Refused:
    """Convert an error of the operating system into a refusal of the protocol."""
    kinds = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.ENOENT: "not_found"}
    kinds.update(dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "denied"))
    kinds.update(dict.fromkeys((errno.ELOOP, errno.ENOTDIR, errno.EISDIR), "bad_path"))
    kind = kinds.get(error.errno or 0, "os_error")
    return Refused(kind, f"{what}: {error.strerror or error}", errno=error.errno)


def host_clock() -> float:
    """Return seconds on this host's clock, which runs on while the host sleeps if the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def host_identity() -> tuple[str, str]:
    """Return hostname and boot id. The boot id is empty if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return os.uname().nodename, file.read().strip()
    except OSError:
        return os.uname().nodename, ""


def checked_name(name: Any, what: str) -> str:
    """Return a name if it is safe for a directory; otherwise raise Refused."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused("bad_request", f"{name!r} is no name of a {what}")
    return name


def checked_path(path: Any) -> list[str]:
    """Return the parts of a relative path that stays in its directory; otherwise raise Refused."""
    parts = path.split("/") if isinstance(path, str) else []
    wrong = any(part in ("", ".", "..") or "\0" in part or len(part) > 255 for part in parts)
    if not parts or wrong or len(path) > _MAX_PATH_CHARS:
        raise Refused("bad_path", f"{path!r} is no path inside the run's directory")
    return parts


def open_below(directory: str, parts: list[str], flags: int, mode: int = 0o600, *, make: bool = False) -> int:
    """Open a file below a directory. Follows no link on the way or at its end."""
    parent = open_directory(directory, parts[:-1], make=make)
    try:
        return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=parent)
    finally:
        os.close(parent)


def open_directory(directory: str, parts: list[str], *, make: bool = False) -> int:
    """Open a directory below another. Follows no link; `make` creates missing ones, private to this user."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        try:
            if make:
                try:
                    os.mkdir(part, 0o700, dir_fd=descriptor)
                except FileExistsError:
                    pass
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def open_regular(directory: str, parts: list[str]) -> int | None:
    """Open a regular file for reading, or return None if there is none."""
    try:
        descriptor = open_below(directory, parts, os.O_RDONLY)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise Refused("bad_path", f"{'/'.join(parts)!r} is no file")


def write_whole(path: str, data: bytes, mode: int = 0o600, parent: int | None = None) -> None:
    """Create or replace a file. Readers see the old or the new content, even after a power cut."""
    part = f"{path}.{os.urandom(4).hex()}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=parent)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(part, dir_fd=parent)
        raise


def unlink_if_there(path: str) -> None:
    """Remove a file if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def expanded(argv: list[str]) -> list[str]:
    """Return program and arguments, with a leading "~" of the program's path expanded."""
    return [os.path.expanduser(argv[0]), *argv[1:]]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, however many calls that takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_padded(path: str, value: dict[str, Any]) -> None:
    """Write a value over a file's old bytes, which needs no room on the disk if the file exists.

    A reader may see a torn write. `read_padded` detects it by the marks at both ends.
    """
    mark = os.urandom(4).hex()
    text = json.dumps({"mark": mark, **value, "mark_at_end": mark}).encode()
    if len(text) > PADDED_BYTES:
        raise Refused("bad_request", f"{len(text)} bytes do not fit into {os.path.basename(path)}")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, text.ljust(PADDED_BYTES), 0)
    finally:
        os.close(descriptor)


def read_padded(path: str) -> dict[str, Any] | None:
    """Return what `write_padded` wrote, or None if it is missing or incomplete."""
    for _ in range(20):
        try:
            with open(path, "rb") as file:
                text = file.read(PADDED_BYTES)
        except FileNotFoundError:
            return None
        if not text.strip():
            return None
        try:
            value = json.loads(text)
            if value.pop("mark") == value.pop("mark_at_end"):
                return value  # type: ignore[no-any-return]
        except (ValueError, KeyError, AttributeError, RecursionError):
            pass
        time.sleep(0.001)
    return None


def read_json(path: str, max_bytes: int = 1 << 20) -> dict[str, Any] | None:
    """Return a JSON object, or None if it is missing, damaged or larger than `max_bytes`."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(max_bytes + 1)[:max_bytes])
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def disk_of(path: str) -> tuple[int, int]:
    """Return the free and the total bytes of the disk on which a path is, or would be."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def check_room(path: str) -> None:
    """Raise Refused if the disk of a path has too little room for a job."""
    free, _ = disk_of(path)
    files = _free_inodes(path) if os.path.exists(path) else None
    if free >= MIN_FREE_BYTES and (files is None or files >= _MIN_FREE_INODES):
        return
    if free < MIN_FREE_BYTES:
        left = f"has {free / 2**20:.1f} MiB left, and a job needs {MIN_FREE_BYTES >> 20}"
    else:
        left = f"has room for {files} more files (inodes), and a job needs {_MIN_FREE_INODES}"
    raise Refused(
        "disk_full",
        f"the disk of {path} on {os.uname().nodename} {left}; free some of it, or set root of [hosts.NAME] "
        "to another directory",
    )


def _free_inodes(path: str) -> int | None:
    """Return how many more files a disk can hold, or None if the disk does not limit them."""
    found = os.statvfs(path)
    return found.f_favail if found.f_files else None


def full_disk_of(paths: list[str]) -> str | None:
    """Return the first of these paths whose disk is full, with what is left there, or None."""
    for path in paths:
        free, _ = disk_of(path)
        if free < _FULL_BYTES:
            return f"{path} ({free:,} bytes left)"
        if os.path.exists(path) and _free_inodes(path) == 0:
            return f"{path} (no inode left for another file)"
    return None


def read_only_disk_of(paths: list[str]) -> str | None:
    """Return the first of these paths whose disk is mounted read-only, or None.

    The kernel mounts a disk read-only after faults.
    """
    for path in paths:
        if os.path.exists(path) and os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{path} (read-only)"
    return None


def sync_disk(path: str) -> None:
    """Flush all writes to the file system of a path at once, which is faster than file by file."""
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, OSError, AttributeError):
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if call(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(descriptor)


def disk_fault(directory: str) -> str | None:
    """Return why workers cannot use a directory, or None if they can.

    Creates the directory and writes a file in it. Ignores how many bytes are left on the disk.
    """
    fault = _write_fault(directory)
    if fault == os.strerror(errno.ENOSPC) and disk_of(directory)[0] < _FULL_BYTES:
        fault = None
    if fault is None and (files := _free_inodes(directory)) is not None and files < _MIN_FREE_INODES:
        fault = f"room for {files} more files (inodes), and a job needs {_MIN_FREE_INODES}"
    if fault is None and os.statvfs(directory).f_flag & getattr(os, "ST_NOEXEC", 0):
        fault = "it is mounted noexec: no program or library there can be used"
    return fault


def _write_fault(directory: str) -> str | None:
    """Create a directory and write a file in it; return the error, or None."""
    path = f"{directory}/.written.{os.urandom(4).hex()}"
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        try:
            write_whole(path, b" " * PADDED_BYTES)
        finally:
            if os.path.exists(path):
                os.unlink(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def remove_tree(path: str) -> bool:
    """Delete a directory and as much of its contents as possible; return whether nothing is left.

    Follows no links. Nested directories are moved up first, because they may lie deeper than a path can name.
    """
    directories = [path]
    for number, directory in enumerate(directories):  # grows in this loop
        for entry in _entries(directory):
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                elif directory == path:
                    directories.append(entry.path)
                else:
                    directories.append(_brought_up(entry.path, f"{path}/.{number}.{os.urandom(4).hex()}"))
            except OSError:
                pass
    for directory in reversed(directories):
        try:
            os.rmdir(directory)
        except OSError:
            pass
    return not os.path.lexists(path)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        os.chmod(directory, 0o700)  # its owner may lack the permission to list it
    except OSError:
        pass
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _brought_up(path: str, to: str) -> str:
    try:
        os.rename(path, to)
    except OSError:  # it belongs to another user
        return path
    return to


def find_foreign(tree: str) -> str | None:
    """Return the path of a tree, or of something in it, that belongs to neither this user nor root, or None.

    An account that could once write into a directory of ours may have left programs there. Follows no links.
    """
    trusted = (0, os.getuid())
    if os.lstat(tree).st_uid not in trusted:
        return tree
    directories = [tree]
    for directory in directories:  # grows in this loop
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_uid not in trusted:
                    return entry.path
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
    return None


def names_in(directory: str) -> Iterator[str]:
    """Return the names in a directory that are not hidden, sorted; none if it does not exist."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return iter(())
    return iter(sorted(name for name in names if not name.startswith(".")))


class FileLock:
    """A lock on an open file, released at the end of the `with` block or of the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1

    def __enter__(self) -> FileLock:
        self.take(wait=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def take(self, *, wait: bool) -> bool:
        """Lock the file that is at this path now. Without `wait`, return False if another handle holds the lock."""
        import fcntl

        while True:
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                return False
            if self._is_current():
                return True
            self.release()  # the file was moved while this waited

    def _is_current(self) -> bool:
        try:
            return os.stat(self.path).st_ino == os.fstat(self.descriptor).st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
