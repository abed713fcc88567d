"""Mounts igfs as a directory of this machine, through FUSE (mfusepy and libfuse)."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path as LocalPath
from types import SimpleNamespace
from typing import Any

from ignite_tf_magic.errors import IgniteTfError, MountError
from ignite_tf_magic.igfs.mounted_files import OPERATIONS, TRUST_S, MountedFiles
from ignite_tf_magic.igfs.paths import Path
from ignite_tf_magic.igfs.volume import Volume

_SUBTYPE = "igfs"
_FILE_SYSTEM_TYPE = f"fuse.{_SUBTYPE}"
_DEVICE = LocalPath("/dev/fuse")
_THREADS = 16
# Waits until the mounting process has ended, then unmounts the dead mount: directory $0, by the command $@.
_WATCH = 'cat; until [ -d "$0" ] || [ $((n += 1)) -gt 100 ]; do "$@"; sleep 0.1; done'
# Programs see these errors only as numbers, which do not explain them, so they are also logged.
_TOLD = (errno.EIO, errno.ENOSPC, errno.EOPNOTSUPP, getattr(errno, "ESTALE", errno.EIO))
_LOG = logging.getLogger(__name__)


def mount(
    volume: Volume, path: Path, directory: LocalPath, name: str, ready: Callable[[], None] = lambda: None
) -> None:
    """Mount a directory of igfs in a local one; blocks until it is unmounted, also by SIGINT or SIGTERM.

    Args:
        volume: Stays connected meanwhile.
        path: The directory of igfs.
        directory: An existing local directory; its contents are hidden meanwhile.
        name: The name that `mount` and `df` show.
        ready: Called once it is mounted.

    Raises:
        MountError: FUSE is missing, or failed.
    """
    fuse = library(directory)
    volume.directory(path)
    told: dict[str, Any] = {"fsname": name, "subtype": _SUBTYPE, "direct_io": True}
    # Linux may cache names for a moment, but never sizes: it reads no more of a file than its supposed size.
    trusted = {"attr_timeout": 0.0, "entry_timeout": TRUST_S}
    if fuse.fuse_version_major == 2:
        told["big_writes"] = True
    else:
        told["max_idle_threads"] = _THREADS  # libfuse 3.14 complains about its own default
    mounted = threading.Event()

    def begin(_: str) -> None:
        mounted.set()
        ready()

    with _gone_with_this_process(directory), volume.in_use(), MountedFiles(volume, path) as files:
        # Connect now: libfuse leaves the working directory, and a file of options there could not be found later.
        volume.store.client()
        operations = SimpleNamespace(
            use_ns=True,
            init=begin,
            flag_nullpath_ok=True,  # libfuse 2: also files that were removed while they are open
            **{each: _answering(getattr(files, each)) for each in OPERATIONS},
        )
        try:
            _careful(fuse)(operations, str(directory), foreground=True, **told, **trusted)
        except RuntimeError as error:
            if mounted.is_set():
                return  # a signal ended it
            raise MountError(
                f"libfuse could not mount igfs in {directory} (code {error}); its message is above. "
                f"{_instead(directory)}"
            ) from None


@contextlib.contextmanager
def _gone_with_this_process(directory: LocalPath) -> Iterator[None]:
    """Leave no dead mount if this process is killed.

    libfuse's auto_unmount sometimes leaves one (6 of 60 on a busy machine, libfuse 3.14): it checks once, perhaps
    before Linux has ended the connection.
    """
    command = ["sh", "-c", _WATCH, str(directory), *_unmounting("-uz", "-f"), str(directory)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    ):
        yield


def library(directory: LocalPath) -> Any:
    """Load mfusepy and libfuse, after checking everything else that a mount in a directory needs.

    If a killed process has left a mount there, this unmounts it.

    Raises:
        MountError: Something is missing.
    """
    if _is_dead(directory):
        unmount(directory)
    if not directory.is_dir():
        raise MountError(f"there is no directory {directory}; create it first")
    if os.path.ismount(directory):
        raise MountError(
            f"something is mounted in {directory} already; to end it: ignite-tf fs unmount {directory}"
        )
    if sys.platform == "linux" and not _DEVICE.exists():
        raise MountError(
            f"igfs cannot be mounted here: this machine has no {_DEVICE}. Load the kernel's module (modprobe fuse), or "
            f"start the container with --device {_DEVICE} --cap-add SYS_ADMIN. {_instead(directory)}"
        )
    try:
        import mfusepy
    except ImportError:
        raise MountError(
            f"mounting needs mfusepy: pip install 'ignite_tf_magic[mount]'. {_instead(directory)}"
        ) from None
    except OSError as error:
        raise MountError(
            f"mounting needs libfuse ({error}): apt-get install fuse3, or dnf install fuse3. {_instead(directory)}"
        ) from None
    return mfusepy


def _instead(directory: LocalPath) -> str:
    return f"Without a mount, files can be kept in sync: ignite-tf fs sync igfs:///PATH {directory} --watch"


def _careful(fuse: Any) -> Any:
    """Refuse kinds of renaming that mfusepy would treat as plain renaming, such as exchanging two files."""

    class Fuse(fuse.FUSE):  # type: ignore[misc, name-defined, unused-ignore]
        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
            if flags & ~1:
                return -errno.EINVAL
            answer: int = super().rename_fuse_3(old, new, flags)
            return answer

    return Fuse


def _answering(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Give every error an errno: EIO if it has none of its own.

    Errors that their number does not explain are also logged.
    """

    @functools.wraps(operation)
    def call(*args: Any) -> Any:
        try:
            return operation(*args)
        except (IgniteTfError, OSError) as error:
            code = getattr(error, "errno", None) or errno.EIO
            if code in _TOLD:
                _LOG.error("%s: %s", operation.__name__, error)
            raise OSError(code, str(error)) from error

    return call


def unmount(directory: LocalPath) -> None:
    """End a mount; returns once the directory is back to what it was.

    Raises:
        MountError: igfs is not mounted there, or something uses it.
    """
    is_dead = _is_dead(directory)
    if not is_mounted(directory):
        other = ", but another file system whose process has ended" if is_dead else ""
        raise MountError(f"igfs is not mounted in {directory}{other}")
    command = _unmounting("-uz", "-f") if is_dead else _unmounting("-u")
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MountError(
            f"igfs in {directory} could not be unmounted: {done.stderr.strip()}. Close the files that are open "
            "there, leave it with every shell, and try again"
        )


def _unmounting(option: str, otherwise: str = "") -> list[str]:
    """Return a command to which the directory to unmount is appended: fusermount's, else umount's option."""
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    return [program, option] if program else ["umount", *filter(None, [otherwise])]


def _is_dead(directory: LocalPath) -> bool:
    """Return whether the process that served this directory's files has ended."""
    try:
        directory.stat()
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def is_mounted(directory: LocalPath) -> bool:
    """Return whether igfs is mounted in a directory, even by another process."""
    mounts = LocalPath("/proc/self/mounts")
    if not mounts.exists():
        return os.path.ismount(directory)
    wanted = os.path.realpath(directory)
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, where, kind, *_rest = line.split(" ")
        if kind == _FILE_SYSTEM_TYPE and where.encode().decode("unicode_escape") == wanted:
            return True
    return False
