"""Provides wheels and uv from this machine for hosts that reach no package index."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.launch.hosts import UNPACKED_LIMIT_BYTES
from ignite_tf_magic.launch.parcels import Parcel, pack_tree
from ignite_tf_magic.launch.spawner import own_python

# The minor version of the oldest glibc that current wheels support.
_FIRST_GLIBC = 5
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_NUM_LAST_LINES = 15
_POLL_S = 0.1


def pack_wheels(folder: Path) -> Parcel:
    """Pack a directory of wheels into a bundle for hosts."""
    return pack_tree(folder, max_bytes=UNPACKED_LIMIT_BYTES)


def platform_tags(host: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the platform tags of wheels that run on a host, best first.

    Args:
        host: Facts about the host: {"platform": "linux-x86_64", "libc": "glibc 2.36" or None}.
    """
    platform = re.sub(r"[-.]", "_", str(host["platform"]))
    glibc = re.fullmatch(r"glibc 2\.(\d+).*", host.get("libc") or "")
    if not platform.startswith("linux_") or glibc is None:
        return (platform,)
    machine = platform.removeprefix("linux_")
    found = []
    for minor in range(int(glibc[1]), _FIRST_GLIBC - 1, -1):
        found.append(f"manylinux_2_{minor}_{machine}")
        if minor in _ALIASES:
            found.append(f"{_ALIASES[minor]}_{machine}")
    return (*found, platform)


class Supplies:
    """Wheels and uv, fetched or packed here once for all hosts that lack them. Thread-safe.

    Args:
        folder: An empty directory to work in.
        cancelled: When set, operations in progress are ended.
    """

    def __init__(self, folder: Path, cancelled: threading.Event) -> None:
        self._folder = folder
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._wheels: dict[str, Parcel | LaunchError] = {}
        self._uv: Parcel | None = None

    def wheels(self, requirements: str, added: Sequence[str], host: Mapping[str, Any]) -> Parcel:
        """Download all wheels that an environment on a kind of host needs.

        Conditions ("; python_version < ...") in requirements are evaluated for this machine.

        Raises:
            LaunchError: The wheels cannot be downloaded; the message says why.
        """
        kind = json.dumps(host, sort_keys=True)
        with self._lock:
            if kind not in self._wheels:
                folder = self._folder / f"wheels-{len(self._wheels)}"
                folder.mkdir()
                try:
                    self._fetch(requirements, added, host, folder)
                    self._wheels[kind] = pack_wheels(folder)
                except LaunchError as error:
                    self._wheels[kind] = error
            found = self._wheels[kind]
        if isinstance(found, LaunchError):
            raise found
        return found

    def _fetch(self, requirements: str, added: Sequence[str], host: Mapping[str, Any], folder: Path) -> None:
        if importlib.util.find_spec("pip") is None:
            raise LaunchError(
                f"wheels cannot be fetched here: {sys.executable} has no pip. Install it (python -m ensurepip), or "
                "fetch them elsewhere and give their directory: --wheels DIR"
            )
        version = ".".join(str(part) for part in host["version"])
        tags = [word for tag in platform_tags(host) for word in ("--platform", tag)]
        command = [
            *own_python("pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
            *("--only-binary=:all:", "--python-version", version, *tags, "-d", str(folder)),
        ]
        listed = folder.with_suffix(".txt")
        listed.write_text(requirements, encoding="utf-8")
        self._run([*command, "-r", str(listed)])
        lacking = [name for name in added if not any(folder.glob(f"{name}-*.whl"))]
        if lacking:  # in a separate call: if the requirements have hashes, all packages in a call need them
            self._run([*command, *lacking])

    def _run(self, command: Sequence[str]) -> None:
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(command, stdin=null, stdout=null, stderr=pipe) as child:
            while True:
                try:
                    _, words = child.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if self._cancelled.is_set():
                        child.kill()
        if child.returncode:
            last = "\n  ".join(words.decode(errors="replace").strip().splitlines()[-_NUM_LAST_LINES:])
            raise LaunchError(f"the wheels cannot be fetched here either; pip said:\n  {last}")

    def own_uv(self) -> str | None:
        """Return the path of uv on this machine, or None."""
        beside = Path(sys.executable).with_name("uv.exe" if sys.platform == "win32" else "uv")
        return str(beside) if beside.is_file() else shutil.which("uv")

    def packed_uv(self) -> Parcel | None:
        """Return uv as a bundle for hosts of this machine's kind, or None if it is not installed."""
        found = self.own_uv()
        with self._lock:
            if found is not None and self._uv is None:
                folder = self._folder / "uv"
                folder.mkdir()
                shutil.copy(found, folder / "uv")
                self._uv = pack_tree(folder)
            return self._uv
