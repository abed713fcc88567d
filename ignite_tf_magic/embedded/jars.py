"""Downloads the jars of an Ignite version into the cache directory, once.

A folder of jars is created atomically: it is filled under another name and then renamed. Later
starts only read its list, and use neither the network nor the resolver.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ignite_tf_magic.embedded.lock import locked
from ignite_tf_magic.errors import EmbeddedError
from ignite_tf_magic.settings.options import cache_dir, environment

MODULES = ("ignite-core", "ignite-indexing", "ignite-spring")

_LIST = "jars.json"
_ATTEMPTS = 2
_TIMEOUT_S = 30


def resolve_jars(version: str, report: Callable[[str], None]) -> tuple[Path, ...]:
    """Return the class path of an Ignite version, downloading it on first use.

    Waits while another process downloads the same version.

    Raises:
        EmbeddedError: The jars are not here and cannot be fetched. No incomplete folder is left.
    """
    folder = cache_dir() / f"ignite-{version}"
    jars = _read_list(folder)
    if jars is None:
        with locked(
            folder.parent / f"{folder.name}.lock",
            lambda: report("waiting for another process to download Ignite"),
        ):
            jars = _read_list(folder) or _download(version, folder, report)
    return jars


def _read_list(folder: Path) -> tuple[Path, ...] | None:
    """Return the jars of a folder; None if it does not exist or a file has another size than recorded."""
    try:
        entries = json.loads((folder / _LIST).read_text(encoding="utf-8"))["jars"]
        jars = [(folder / entry["name"], entry["bytes"]) for entry in entries]
        intact = all(jar.stat().st_size == size for jar, size in jars)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return tuple(jar for jar, _ in jars) if intact and jars else None


def _download(version: str, folder: Path, report: Callable[[str], None]) -> tuple[Path, ...]:
    if find_spec("jgo") is None:
        raise EmbeddedError(
            f"the jars of Apache Ignite {version} are not on this machine, and jgo, which fetches them, "
            "is not installed; get it with: pip install 'ignite_tf_magic[local]'"
        )
    report(f"downloading Apache Ignite {version} (about 27 MB, once) to {folder}")
    prefix = f"{folder.name}-part-"
    for left in folder.parent.glob(f"{prefix}*"):  # left by a download that was killed
        shutil.rmtree(left)
    for attempt in range(1, _ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as scratch:
            try:
                fetched = _fetch(version, Path(scratch) / "repository")
            except EmbeddedError:
                raise
            except (
                OSError,
                RuntimeError,
                ValueError,
                KeyError,
            ) as error:  # everything that the resolver raises
                if attempt == _ATTEMPTS:
                    raise _unreachable(version, folder, error) from error
                continue
            return _install(fetched, Path(scratch) / "jars", folder)
    raise AssertionError("unreachable")


def _fetch(version: str, repository: Path) -> list[Path]:
    from jgo.maven import MavenContext
    from jgo.parse import Coordinate

    mirror = _mirror()
    context = MavenContext(
        repo_cache=repository,
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=_TIMEOUT_S,
    )
    wanted = [
        context.create_dependency(Coordinate("org.apache.ignite", module, version, scope="compile"))
        for module in MODULES
    ]
    inputs, transitive = context.resolver.resolve(wanted)
    needed = [*inputs, *(item for item in transitive if item.scope in ("compile", "runtime"))]
    return _download_artifacts([item.artifact for item in needed if item.type == "jar"])


def _download_artifacts(artifacts: list[Any]) -> list[Path]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        jars: list[Path] = list(pool.map(lambda artifact: artifact.resolve(), artifacts))
    for jar in jars:
        if not zipfile.is_zipfile(jar):
            raise OSError(f"{jar.name} came back as {jar.stat().st_size} bytes that are not a jar")
    return jars


def _install(fetched: list[Path], staging: Path, folder: Path) -> tuple[Path, ...]:
    staging.mkdir(mode=0o700)
    for jar in fetched:
        jar.replace(staging / jar.name)
    names = sorted(jar.name for jar in fetched)
    entries = [{"name": name, "bytes": (staging / name).stat().st_size} for name in names]
    (staging / _LIST).write_text(json.dumps({"jars": entries}, indent=1), encoding="utf-8")
    if folder.exists():  # it is damaged, since `_read_list` refused it
        shutil.rmtree(folder)
    staging.replace(folder)
    return tuple(folder / name for name in names)


def _mirror() -> str | None:
    return environment("IGNITE_TF_", ["maven_repository"]).get("maven_repository")


def _unreachable(version: str, folder: Path, error: Exception) -> EmbeddedError:
    mirror = _mirror()
    asked = f"the mirror at {urlsplit(mirror).hostname}" if mirror else "the public Maven repository"
    answer = (
        str(error).replace(mirror, "the mirror") if mirror else str(error)
    )  # its URL may contain a password
    wanted = ", ".join(f"org.apache.ignite:{module}:{version}" for module in MODULES)
    return EmbeddedError(
        f"could not fetch {wanted} and what they need from {asked}: {type(error).__name__}: {answer}\n"
        "Check the network (HTTPS_PROXY is honoured), name a mirror in IGNITE_TF_MAVEN_REPOSITORY, or copy "
        f"the folder {folder} from a machine that has it."
    )
