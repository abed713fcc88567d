"""igfs as a directory of this machine, through FUSE (mfusepy and libfuse)."""

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
# Reads until the mounting process has ended, and unmounts what is dead then: directory $0, by the command $@.
_WATCH = 'cat; until [ -d "$0" ] || [ $((n += 1)) -gt 100 ]; do "$@"; sleep 0.1; done'
# Errors that a program sees as a number only, and a person would not understand by that.
_TOLD = (errno.EIO, errno.ENOSPC, errno.EOPNOTSUPP, getattr(errno, "ESTALE", errno.EIO))
_LOG = logging.getLogger(__name__)


def mount(
    volume: Volume, path: Path, directory: LocalPath, name: str, ready: Callable[[], None] = lambda: None
) -> None:
    """Show a directory of igfs in a local one; blocks until it is unmounted, also by SIGINT or SIGTERM.

    Args:
        volume: Stays connected meanwhile.
        path: The directory of igfs.
        directory: An existing local directory; what is in it is hidden meanwhile.
        name: What `mount` and `df` call it.
        ready: Called when it is mounted.

    Raises:
        MountError: FUSE is not there, or refused.
    """
    fuse = library(directory)
    volume.directory(path)
    told: dict[str, Any] = {"fsname": name, "subtype": _SUBTYPE, "direct_io": True}
    # Names are trusted for a moment, sizes never: Linux reads no more of a file than it takes its size to be.
    trusted = {"attr_timeout": 0.0, "entry_timeout": TRUST_S}
    if fuse.fuse_version_major == 2:
        told["big_writes"] = True
    else:
        told["max_idle_threads"] = _THREADS  # libfuse 3.14 complains of its own default
    mounted = threading.Event()

    def begin(_: str) -> None:
        mounted.set()
        ready()

    with _gone_with_this_process(directory), volume.in_use(), MountedFiles(volume, path) as files:
        # Connected now: a file of options in the working directory is not found later, for libfuse leaves it.
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
                return  # it was ended by a signal
            raise MountError(
                f"libfuse could not mount igfs in {directory} (code {error}); what it said is above. "
                f"{_instead(directory)}"
            ) from None


@contextlib.contextmanager
def _gone_with_this_process(directory: LocalPath) -> Iterator[None]:
    """Leave no dead mount when this process is killed.

    libfuse's auto_unmount leaves one now and then (6 of 60 on a busy machine, libfuse 3.14): it looks once, and may
    look before Linux has ended the connection.
    """
    command = ["sh", "-c", _WATCH, str(directory), *_unmounting("-uz", "-f"), str(directory)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    ):
        yield


def library(directory: LocalPath) -> Any:
    """Load mfusepy and libfuse, when everything is there that a mount in a directory needs.

    What a killed process has left mounted there is unmounted.

    Raises:
        MountError: Something is not.
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
    return f"Without a mount, files can be kept in step: ignite-tf fs sync igfs:///PATH {directory} --watch"


def _careful(fuse: Any) -> Any:
    """Refuse kinds of renaming that mfusepy would take for the plain one, such as exchanging two files."""

    class Fuse(fuse.FUSE):  # type: ignore[misc, name-defined, unused-ignore]
        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
            if flags & ~1:
                return -errno.EINVAL
            answer: int = super().rename_fuse_3(old, new, flags)
            return answer

    return Fuse


def _answering(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return every error an errno; those that have none of their own are a failing device, and told in the log."""

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
    """End a mount; returns when the directory is what it was.

    Raises:
        MountError: igfs is not mounted there, or somebody uses it.
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
    """Return the command that unmounts the directory that follows: fusermount's option, or the one of umount."""
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    return [program, option] if program else ["umount", *filter(None, [otherwise])]


def _is_dead(directory: LocalPath) -> bool:
    """Whether the process has ended that showed the files of this directory."""
    try:
        directory.stat()
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def is_mounted(directory: LocalPath) -> bool:
    """Whether igfs is mounted in a directory, also by another process."""
    mounts = LocalPath("/proc/self/mounts")
    if not mounts.exists():
        return os.path.ismount(directory)
    wanted = os.path.realpath(directory)
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, where, kind, *_rest = line.split(" ")
        if kind == _FILE_SYSTEM_TYPE and where.encode().decode("unicode_escape") == wanted:
            return True
    return False
