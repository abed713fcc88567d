"""Files of text as bytes and lines: compressed, in a zip, and in any encoding."""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from ignite_tf_magic.errors import SourceError

_COMPRESSED = (".gz", ".bz2", ".zst")
_HEAD_BYTES = 1 << 20
# What opening and reading can raise beside SourceError.
UNREADABLE = (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a file of text is read.

    Attributes:
        separator: Between the columns of a csv file; None: a tab or semicolon in the first line, else a comma.
        kinds: Column -> its kind, instead of the one that its values show.
        na: Words that stand for a missing value in any column of a csv file.
        encoding: Of the file.
        header: Whether the first line of a csv file holds the columns' names. None: it does, and a name that is a
            number is refused.
        names: Names of the columns of a csv file; without `header` its first line is a row.
        decimal: What separates the decimals of numbers in a csv file.
    """

    separator: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    na: Sequence[str] = ()
    encoding: str = "utf-8"
    header: bool | None = None
    names: Sequence[str] = ()
    decimal: str = "."


def content_suffix(path: Path) -> str:
    """Return the suffix that says what a file holds: of `a.csv.gz`, and of a zip with `a.csv` in it, it is ".csv".

    Raises:
        SourceError: A zip cannot be read, or does not hold exactly one file.
    """
    suffix = path.suffix.lower()
    if suffix == ".zip":
        return Path(_only_member(path).filename).suffix.lower()
    return (path.with_suffix("") if suffix in _COMPRESSED else path).suffix.lower()


def open_bytes(path: Path) -> IO[bytes]:
    """Open what a file holds for reading.

    Raises:
        SourceError: As for `content_suffix`.
        OSError: It cannot be opened.
    """
    if path.suffix.lower() == ".zip":
        member = _only_member(path)
        with zipfile.ZipFile(path) as archive:
            return archive.open(member)  # which keeps the file open
    if path.suffix.lower() not in _COMPRESSED:
        return path.open("rb")
    import pyarrow as pa

    stream: Any = pa.input_stream(str(path), compression="detect")
    return stream  # type: ignore[no-any-return]


def open_lines(path: Path, encoding: str) -> TextIOWrapper:
    """Open a file of text, without its byte order mark.

    Raises:
        SourceError, OSError: As for `open_bytes`.
        LookupError: There is no such encoding.
    """
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    return TextIOWrapper(open_bytes(path), encoding="utf-8-sig" if is_utf8 else encoding)


def first_line(path: Path, encoding: str) -> str:
    """Return the first line, as far as it is within the first MiB, with `?` for what the encoding cannot read.

    Raises:
        SourceError, OSError, LookupError: As for `open_lines`.
    """
    with open_bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    return next(iter(head.decode(encoding, "replace").splitlines()), "")


def encoding_hint(path: Path, error: Exception) -> str:
    """Return the end of a message about a file that cannot be read: which encoding to try, if that is the reason."""
    try:
        with open_bytes(path) as file:
            mark = file.read(2)
    except UNREADABLE:  # that is the reason, and `error` tells it
        return ""
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "; its byte order mark says --encoding utf-16"
    if isinstance(error, UnicodeError | LookupError) or "UTF8" in str(error):
        return "; say its encoding, for example --encoding latin-1"
    return ""


def _only_member(path: Path) -> zipfile.ZipInfo:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [each for each in archive.infolist() if not each.is_dir()]
    except UNREADABLE as error:
        raise SourceError(f"cannot read {str(path)!r} as a zip: {error}") from error
    members = [each for each in infos if not each.filename.startswith("__MACOSX/")]  # the Finder's notes
    if len(members) != 1 or members[0].flag_bits & 1:
        held = f"holds {len(members)} files" if len(members) != 1 else "is encrypted"
        raise SourceError(f"cannot load {str(path)!r}: it {held}; unpack it and give one file")
    return members[0]
