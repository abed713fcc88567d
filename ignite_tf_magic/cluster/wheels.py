"""Wheels fetched here for a host that reaches no package index."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import LaunchError

# The oldest C library that wheels of today are made for, by its minor version.
_FIRST_GLIBC = 5
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_NUM_LAST_LINES = 15


def platform_tags(host: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the tags of the wheels that run on a host, the most fitting first.

    Args:
        host: What the host says: {"platform": "linux-x86_64", "libc": "glibc 2.36" or None}.
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


def fetch_wheels(requirements: Path, extras: Sequence[str], host: Mapping[str, Any], folder: Path) -> None:
    """Fetch all wheels that an environment on a host needs. Conditions in requirements are judged for this machine.

    Raises:
        LaunchError: They cannot be had, and why.
    """
    if importlib.util.find_spec("pip") is None:
        raise LaunchError(
            f"wheels cannot be fetched here: {sys.executable} has no pip. Install it (python -m ensurepip), or "
            "fetch them elsewhere and give their directory: --wheels DIR"
        )
    version = ".".join(str(part) for part in host["version"])
    tags = [word for tag in platform_tags(host) for word in ("--platform", tag)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--only-binary=:all:", "--python-version", version, *tags, "-d", str(folder)),
    ]
    _run([*command, "-r", str(requirements)])
    for extra in extras:
        done = _try([*command, extra])
        if done.returncode:
            return  # the host says what is missing, if it is


def _run(command: Sequence[str]) -> None:
    done = _try(command)
    if done.returncode:
        words = "\n  ".join(done.stderr.strip().splitlines()[-_NUM_LAST_LINES:])
        raise LaunchError(f"the wheels cannot be fetched here either; pip said:\n  {words}")


def _try(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
