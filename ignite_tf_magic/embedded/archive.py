"""Java's archive of loaded classes, which lets nodes start in about half the time and CPU.

Made once per Java and Ignite by a node that is started for this and ended; kept beside the jars. Java
checks an archive against its own build and the class path, and runs without it when they differ.

Measured with Java 25, 3 nodes on 2 busy cores: ready after 4.9 s instead of 8.8 s, 8 s of CPU instead of
13.5 s, 190 MB of memory per node instead of 223 MB. Making it takes 6 to 10 s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.embedded.java import Java


@dataclass(frozen=True, slots=True)
class Archive:
    """Where an archive is, or will be, and how Java is told of it."""

    path: Path
    write_option: str
    read_option: str

    @property
    def lock(self) -> Path:
        """The lock file to hold while making it."""
        return self._named("lock")

    def is_wanted(self) -> bool:
        """Whether it should be made: it is not there, could be put there, and did not fail before."""
        done = self.path.exists() or self._named("failed").exists()
        return not done and os.access(self.path.parent, os.W_OK)

    def read_options(self) -> tuple[str, ...]:
        """What the command line of a node says to use it."""
        return (f"{self.read_option}={self.path}",) if self.path.exists() else ()

    def write_options(self) -> tuple[str, ...]:
        """What the command line of a node says to write it, under another name, when the node ends."""
        self._named("part").unlink(missing_ok=True)  # of a node that was killed
        return (f"{self.write_option}={self._named('part')}",)

    def install(self) -> bool:
        """Put what a node wrote in its place; False, and not wanted again, when it wrote nothing."""
        part = self._named("part")
        if part.exists():
            part.replace(self.path)
            return True
        self._named("failed").touch()
        return False

    def _named(self, what: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{what}")


def archive_for(java: Java, jars: tuple[Path, ...]) -> Archive | None:
    """The archive for a Java and a class path; None when this Java can make none by itself."""
    folder = jars[0].parent
    if java.major >= 25:
        return Archive(folder / f"java-{java.version}.aot", "-XX:AOTCacheOutput", "-XX:AOTCache")
    if java.major >= 17:
        return Archive(
            folder / f"java-{java.version}.jsa", "-XX:ArchiveClassesAtExit", "-XX:SharedArchiveFile"
        )
    return None
