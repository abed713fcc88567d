"""Requirements that a person has of the workers' interpreter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.launch.jobs import HostFacts, ProbeFacts
from ignite_tf_magic.launch.parcels import Parcel
from ignite_tf_magic.runs.environments.wheels import pack_wheels

# What this package itself imports wherever it reads from Ignite: installed too, if what is asked for does not bring it.
ADDED = ("numpy", "fsspec")
_RECIPE = 1  # counts the changes of how environments are built, which make others of the same words
_NAMES_FILES = ("-r", "-c", "-e", "--requirement", "--constraint", "--editable", ".", "/", "file:")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the workers' interpreter is to have installed.

    Attributes:
        name: What messages call it.
        lines: As pip reads them, without comments.
        wheels: Where all of it comes from; None asks a package index.
    """

    name: str
    lines: tuple[str, ...]
    wheels: Parcel | None = None

    @property
    def text(self) -> str:
        """Return the lines as a file."""
        return "\n".join([*self.lines, ""])

    def digest_on(self, facts: HostFacts, python: ProbeFacts) -> str:
        """Name the environment that this makes of an interpreter of a host."""
        base = [facts.platform, facts.machine, python.interpreter, python.version]
        content = [_RECIPE, ADDED, self.lines, self.wheels.digest if self.wheels else None, base]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def read_requirements(path: Path, wheels: Path | None = None) -> Requirements:
    """Read a file of requirements, and pack a directory of wheels that has all of them.

    Raises:
        ConfigError: It cannot be read, names other files, or there are no wheels.
        ParcelError: The wheels cannot be shipped.
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
                f"{path} names another file ({line!r}), which hosts do not have; write all of it into one file, as by: "
                f"uv pip compile {path} -o lock.txt"
            )
    if wheels is not None and not any(wheels.glob("*.whl")):
        words = " ".join(ADDED)
        raise ConfigError(f"no wheels are in {str(wheels)!r}: pip download -r {path} {words} -d {wheels}")
    return Requirements(path.name, tuple(lines), pack_wheels(wheels) if wheels else None)
