"""Opens text files as bytes and lines: compressed, in a zip, and in any encoding."""

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
# Exceptions other than SourceError that opening and reading can raise.
UNREADABLE = (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a text file is read.

    Attributes:
        separator: Column separator of a csv file. None: a tab or semicolon if the first line has one, else a comma.
        kinds: Column -> kind, instead of the kind that its values show.
        na: Words that mean a missing value in any column of a csv file.
        encoding: The file's encoding.
        header: Whether the first line of a csv file has the column names. None: it does, and a name that is a number is
            refused.
        names: Column names of a csv file. Unless `header` is true, its first line is then a row.
        decimal: The decimal separator in a csv file.
    """

    separator: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    na: Sequence[str] = ()
    encoding: str = "utf-8"
    header: bool | None = None
    names: Sequence[str] = ()
    decimal: str = "."


def content_suffix(path: Path) -> str:
    """Return the suffix for a file's content: ".csv" for `a.csv.gz`, and for a zip that contains `a.csv`.

    Raises:
        SourceError: A zip cannot be read, or does not contain exactly one file.
    """
    suffix = path.suffix.lower()
    if suffix == ".zip":
        return Path(_only_member(path).filename).suffix.lower()
    return (path.with_suffix("") if suffix in _COMPRESSED else path).suffix.lower()


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file's uncompressed content for reading.

    Raises:
        SourceError: As for `content_suffix`.
        OSError: The file cannot be opened.
    """
    if path.suffix.lower() == ".zip":
        member = _only_member(path)
        with zipfile.ZipFile(path) as archive:
            return archive.open(member)  # the member keeps the file open
    if path.suffix.lower() not in _COMPRESSED:
        return path.open("rb")
    import pyarrow as pa

    stream: Any = pa.input_stream(str(path), compression="detect")
    return stream  # type: ignore[no-any-return]


def open_lines(path: Path, encoding: str) -> TextIOWrapper:
    """Open a text file, without its byte order mark.

    Raises:
        SourceError, OSError: As for `open_bytes`.
        LookupError: There is no such encoding.
    """
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    return TextIOWrapper(open_bytes(path), encoding="utf-8-sig" if is_utf8 else encoding)


def first_line(path: Path, encoding: str) -> str:
    """Return the first line, up to 1 MiB, with a replacement character for bytes that the encoding cannot decode.

    Raises:
        SourceError, OSError, LookupError: As for `open_lines`.
    """
    with open_bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    return next(iter(head.decode(encoding, "replace").splitlines()), "")


def encoding_hint(path: Path, error: Exception) -> str:
    """Return the end of a message about an unreadable file: the encoding to try, if that is the reason."""
    try:
        with open_bytes(path) as file:
            mark = file.read(2)
    except UNREADABLE:  # this is the reason, and `error` states it
        return ""
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "; its byte order mark says --encoding utf-16"
    if isinstance(error, UnicodeError | LookupError) or "UTF8" in str(error):
        return "; pass its encoding, for example --encoding latin-1"
    return ""


def _only_member(path: Path) -> zipfile.ZipInfo:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [each for each in archive.infolist() if not each.is_dir()]
    except UNREADABLE as error:
        raise SourceError(f"cannot read {str(path)!r} as a zip: {error}") from error
    members = [each for each in infos if not each.filename.startswith("__MACOSX/")]  # macOS metadata
    if len(members) != 1 or members[0].flag_bits & 1:
        held = f"holds {len(members)} files" if len(members) != 1 else "is encrypted"
        raise SourceError(f"cannot load {str(path)!r}: it {held}; unpack it and give one file")
    return members[0]
