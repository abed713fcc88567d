"""Entries of archives that hosts unpack: safe names, links that stay inside, limited size and number.

This module reads neither directories nor archives; `archives` and `parcels` add the entries.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from ignite_tf_magic.errors import ParcelError

MAX_ENTRIES = 100_000
SECRET_NAME = re.compile(r"ignite-tf\.toml|\.env|\.env\..*|\.envrc|\.git|\.ssh|\.netrc|\.pgpass")
_PEM_KEY = re.compile(rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY")
_MOST_KEY_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One entry of an archive: a file (`source`), a link (`target`), or a directory (neither)."""

    source: Path | None = None
    target: str | None = None
    is_executable: bool = False
    num_bytes: int = 0
    mtime_ns: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is neither a link nor a file."""
        return self.source is None and self.target is None


@dataclass(slots=True)
class Entries:
    """The entries of an archive that will be packed: safe names and links, limited size and number."""

    what: str
    max_bytes: int
    named: dict[str, ArchiveEntry] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, name: str, entry: ArchiveEntry) -> None:
        """Add an entry. It replaces an earlier one of the same name.

        Raises:
            ParcelError: The entry is a link that may lead out of the archive, or there are too many entries.
        """
        if entry.target is not None and leads_out(name, entry.target):
            raise ParcelError(
                f"{self.what}: the symbolic link {name!r} leads to {entry.target!r}. Only relative links "
                "that stay inside ('..' in front only) can be shipped: replace it with its target"
            )
        self.named[name] = entry
        if len(self.named) > MAX_ENTRIES:
            raise ParcelError(f"{self.what} has more than {MAX_ENTRIES:,} entries; leave some out")

    def safe_name(self, name: str) -> str:
        """Return a name without "." and doubled slashes, or "" for the archive's root.

        Raises:
            ParcelError: The name is unsafe to unpack.
        """
        if name.startswith("/") or re.match(r"[A-Za-z]:", name):
            raise ParcelError(f"{self.what}: {name!r} is an absolute path; hosts unpack relative ones only")
        if "\\" in name or "\0" in name:
            raise ParcelError(f"{self.what}: {name!r} has a character that paths on hosts may not have")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ParcelError(
                f"{self.what}: {name!r} leads out of the directory in which it is unpacked ('..')"
            )
        return "/".join(parts)

    def leave_out_secrets(self) -> None:
        """Leave out ignite-tf.toml, .env files, .git, .ssh, .netrc, .pgpass and files that hold a private key."""
        for name in list(self.named):
            parts = name.split("/")
            depth = next((i for i, part in enumerate(parts, 1) if SECRET_NAME.fullmatch(part)), 0)
            if depth or _is_private_key(self.named[name]):
                del self.named[name]
                top = "/".join(parts[: depth or len(parts)])
                if top not in self.left_out:
                    self.left_out.append(top)

    def without_top(self, wanted: str | None) -> None:
        """Strip a single top-level directory if the wanted file lies in it and not at the root."""
        tops = {name.partition("/")[0] for name in self.named} - {"__MACOSX"}
        top = tops.pop() if len(tops) == 1 else ""
        if wanted and wanted not in self.named and f"{top}/{wanted}" in self.named:
            start = f"{top}/"
            self.named = {n.removeprefix(start): e for n, e in self.named.items() if n.startswith(start)}

    def finished(self) -> list[tuple[str, ArchiveEntry]]:
        """Return all entries, each directory before its contents. Missing parent directories are added."""
        for name in list(self.named):
            parent = name.rpartition("/")[0]
            while parent:
                if not self.named.setdefault(parent, ArchiveEntry()).is_directory:
                    raise ParcelError(
                        f"{self.what}: {name!r} lies below {parent!r}, which is not a directory"
                    )
                parent = parent.rpartition("/")[0]
        self.check_size()
        return sorted(self.named.items(), key=lambda item: item[0].split("/"))

    def check_size(self) -> None:
        """Raise ParcelError, which names the largest files, if their total size exceeds the limit."""
        total = sum(entry.num_bytes for entry in self.named.values())
        if total > self.max_bytes:
            files = sorted(self.named.items(), key=lambda item: (-item[1].num_bytes, item[0]))[:5]
            largest = ", ".join(f"{name} ({mib(entry.num_bytes)})" for name, entry in files)
            raise ParcelError(
                f"{self.what} has {mib(total)} of files and at most {mib(self.max_bytes)} are shipped; the largest: "
                f"{largest}. Leave them out, or read them from Ignite or igfs://"
            )

    def stamp(self) -> str:
        """Return a hash that changes if a file's path, size or time does. Reads no file."""
        told = [
            (n, str(e.source), e.num_bytes, e.mtime_ns, e.target, e.is_executable) for n, e in self.finished()
        ]
        return hashlib.sha256(json.dumps(told).encode(errors="surrogateescape")).hexdigest()[:32]


def leads_out(name: str, target: str) -> bool:
    """Return whether a link may lead out of its tree.

    A safe target has at most as many ".." as the link is deep, all in front, and then only names. Such a path stays
    in the tree, even if it passes through other links.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    stays = not target.startswith("/") and ups <= name.count("/") and ".." not in parts[ups:]
    return bool(not target or not stays or "\\" in target or "\0" in target or re.match(r"[A-Za-z]:", target))


def _is_private_key(entry: ArchiveEntry) -> bool:
    if entry.source is None or entry.num_bytes > _MOST_KEY_BYTES:
        return False
    try:
        with entry.source.open("rb") as file:
            start = file.read(64)
    except OSError:
        return False  # packing the file reports the error
    return start.startswith(b"PuTTY-User-Key-File") or bool(_PEM_KEY.match(start))


def mib(num_bytes: int) -> str:
    """Format a size in MiB for people."""
    return f"{num_bytes / (1 << 20):,.1f} MiB"
