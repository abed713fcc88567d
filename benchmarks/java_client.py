"""Compiles and starts the Java variants using pip packages: the compiler is a jar, so no JDK is needed."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from jgo.maven import MavenContext
from jgo.parse import Coordinate

from ignite_tf_magic.embedded.jars import resolve_jars
from ignite_tf_magic.embedded.java import ADD_OPENS, find_java
from ignite_tf_magic.embedded.lock import locked
from ignite_tf_magic.embedded.options import EmbeddedOptions
from ignite_tf_magic.settings.options import cache_dir, environment

ECJ_VERSION = "3.43.0"
_SOURCE = Path(__file__).parent / "java" / "ThinScan.java"
_HEAP = "768m"


def java_command(report: Callable[[str], None], source: Path = _SOURCE) -> list[str]:
    """Return the command line of a one-file program, without its arguments; compile it on first use."""
    version = EmbeddedOptions().resolved_version()
    java, jars = find_java(version), resolve_jars(version, report)
    classes = _classes(java.path, jars, source, report)
    path = ":".join(map(str, [classes, *jars]))
    opens = [f"--add-opens={module}=ALL-UNNAMED" for module in ADD_OPENS]
    return [java.path, *opens, f"-Xmx{_HEAP}", "-cp", path, source.stem]


def _classes(java: str, jars: Sequence[Path], source: Path, report: Callable[[str], None]) -> Path:
    """Return the folder of class files, named by a hash of its inputs."""
    made_of = "\n".join([ECJ_VERSION, *(jar.name for jar in jars)]).encode() + source.read_bytes()
    folder = cache_dir() / f"bench-{hashlib.sha256(made_of).hexdigest()[:16]}"
    with locked(folder.with_suffix(".lock"), lambda: report("waiting for another process that compiles it")):
        if not folder.exists():
            report(f"compiling {source.name}")
            compiler = _compiler()
            with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as scratch:
                staging = Path(scratch) / "classes"
                argv = [java, "-jar", str(compiler), "-11", "-nowarn", "-cp", ":".join(map(str, jars))]
                subprocess.run([*argv, "-d", str(staging), str(source)], check=True)
                staging.replace(folder)
    return folder


def _compiler() -> Path:
    """Return the Eclipse compiler's jar, downloaded on first use."""
    mirror = environment("IGNITE_TF_", ["maven_repository"]).get("maven_repository")
    context = MavenContext(
        repo_cache=cache_dir() / "ecj",
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=30,
    )
    coordinate = Coordinate("org.eclipse.jdt", "ecj", ECJ_VERSION, scope="compile")
    jar = Path(context.create_dependency(coordinate).artifact.resolve())
    if not zipfile.is_zipfile(jar):
        raise OSError(f"{jar.name} came back as {jar.stat().st_size} bytes that are not a jar")
    return jar
