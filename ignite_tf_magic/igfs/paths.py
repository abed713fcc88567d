"""Paths: what is allowed as a name, and how to parse "igfs://host:port/a/b". Pure.

A path is a tuple of names; the root is the empty tuple. Only "/" and NUL are special: "#", "?" and "%" are parts of
names, as on a disk.
"""

from __future__ import annotations

from ignite_tf_magic.errors import ConfigError, CorruptRecord, InvalidPath
from ignite_tf_magic.settings.options import Endpoint

SCHEME = "igfs"
MAX_NAME_BYTES = 4096
MAX_PATH_BYTES = 64 * 1024

Path = tuple[str, ...]


def split_uri(uri: str) -> tuple[str, str]:
    """Split "igfs://host:port/a" into "host:port" and "/a"; the authority of a bare path is empty."""
    for prefix in (f"{SCHEME}://", f"{SCHEME}:"):
        if uri.startswith(prefix):
            rest = uri.removeprefix(prefix)
            if prefix.endswith("//"):
                authority, slash, path = rest.partition("/")
                return authority, slash + path
            return "", rest
    return "", uri


def is_uri(text: str) -> bool:
    """Return whether the text begins with "igfs:"."""
    return text.startswith(f"{SCHEME}:")


def endpoint_of(authority: str) -> Endpoint:
    """Parse the authority of a URI.

    Raises:
        InvalidPath: It is not HOST or HOST:PORT.
    """
    try:
        return Endpoint.parse(authority)
    except ConfigError:
        raise InvalidPath(
            "this is not an igfs address; write igfs:///path for the configured cluster, or "
            "igfs://HOST:PORT/path, where PORT is a node's thin client port",
            f"{SCHEME}://{authority}/",
        ) from None


def names_of(local: str) -> Path:
    """Split a path without authority into names, as `os.path.normpath` does.

    Empty names and "." are left out; ".." removes the name before it, and does nothing at the root.
    """
    names: list[str] = []
    for name in local.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return tuple(names)


def parse(path: str) -> Path:
    """Split a path or URI into names; see `names_of`.

    Raises:
        InvalidPath: A name is too long, or has characters that no name can have.
    """
    names = names_of(split_uri(path)[1])
    for name in names:
        check(name, path)
    if len(names) > 16 and sum(map(len, names)) > MAX_PATH_BYTES:
        raise InvalidPath(f"the path has more than {MAX_PATH_BYTES:,} characters", path[:100] + "...")
    return names


def render(path: Path) -> str:
    """Return a path with slashes; the root is "/"."""
    return "/" + "/".join(path)


def check_listed(name: str, directory: Path) -> str:
    """Return a name read from a directory after checking it, because any client can write there.

    Raises:
        CorruptRecord: No file can have that name: as a part of a path it would lead elsewhere.
    """
    try:
        check(name, name)
    except InvalidPath as error:
        raise CorruptRecord(
            f"this directory holds an entry with the name {name[:200]!r}, which no file can have ({error.strerror}); "
            "another program has written it. Nothing was done with it; ignite-tf fs fsck --repair removes it",
            render(directory),
        ) from None
    return name


def check(name: str, path: str) -> None:
    """Raise if a name is not allowed.

    Args:
        name: The name to check.
        path: The path to show in the error.

    Raises:
        InvalidPath: It is empty, ".", "..", too long, or has characters that no name can have.
    """
    if name in ("", "."):
        raise InvalidPath("a name cannot be empty or a dot", path)
    if "/" in name:
        raise InvalidPath("a name cannot hold a slash", path)
    if name == "..":
        raise InvalidPath("a name cannot be two dots", path)
    if "\0" in name:
        raise InvalidPath("a name cannot hold a NUL character", path)
    try:
        num_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidPath("a name must be valid Unicode (it holds half of a surrogate pair)", path) from None
    if num_bytes > MAX_NAME_BYTES:
        raise InvalidPath(
            f"a name may have {MAX_NAME_BYTES:,} bytes, this one has {num_bytes:,}", path[:100] + "..."
        )
