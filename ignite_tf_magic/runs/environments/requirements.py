"""A user's requirements for the workers' interpreter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.launch.jobs import HostFacts, ProbeFacts
from ignite_tf_magic.launch.parcels import Parcel
from ignite_tf_magic.runs.environments.wheels import pack_wheels

# Packages that this package imports wherever it reads from Ignite. They are installed if the requirements do not
# include them.
ADDED = ("numpy", "fsspec")
_RECIPE = 1  # increased when the build procedure changes, so that environments are built anew
_NAMES_FILES = ("-r", "-c", "-e", "--requirement", "--constraint", "--editable", ".", "/", "file:")


@dataclass(frozen=True, slots=True)
class Requirements:
    """The packages to install for the workers' interpreter.

    Attributes:
        name: Name for messages.
        lines: Lines in pip's format, without comments.
        wheels: Bundle of wheels to install from; None uses a package index.
    """

    name: str
    lines: tuple[str, ...]
    wheels: Parcel | None = None

    @property
    def text(self) -> str:
        """The lines as the content of a file."""
        return "\n".join([*self.lines, ""])

    def digest_on(self, facts: HostFacts, python: ProbeFacts) -> str:
        """Return an identifier of the environment for this interpreter on this host."""
        base = [facts.platform, facts.machine, python.interpreter, python.version]
        content = [_RECIPE, ADDED, self.lines, self.wheels.digest if self.wheels else None, base]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def read_requirements(path: Path, wheels: Path | None = None) -> Requirements:
    """Read a requirements file, and pack a directory of wheels that contains all of them.

    Raises:
        ConfigError: The file cannot be read or names other files, or there are no wheels.
        ParcelError: The wheels cannot be packed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the requirements {str(path)!r} cannot be read: {error}") from error
    lines = [line.partition(" #")[0].rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for line in lines:
        if line.startswith(_NAMES_FILES):
            raise ConfigError(
                f"{path} refers to another file ({line!r}), which hosts do not have; merge them into one "
                f"file, for example: uv pip compile {path} -o lock.txt"
            )
    if wheels is not None and not any(wheels.glob("*.whl")):
        words = " ".join(ADDED)
        raise ConfigError(f"no wheels are in {str(wheels)!r}: pip download -r {path} {words} -d {wheels}")
    return Requirements(path.name, tuple(lines), pack_wheels(wheels) if wheels else None)
