"""Names of record files: ignite://CACHE/assigned, ignite://HOST:PORT/CACHE/part-7, with options after "?".

The builder of a graph names a file. The process that opens the file decides what is in it, by its own IGNITE_DATASET_*
variables. A name never contains a secret.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from ignite_tf_magic.errors import ConfigError, format_ranges
from ignite_tf_magic.settings.options import Endpoint

SCHEME = "ignite"
ASSIGNED = "assigned"
ALL = "all"
PARTITION_PREFIX = "part-"

THIS_PROCESS = uuid.uuid4().hex

# TensorFlow's error for an unknown scheme quotes only the file's name, so the name carries the hint.
_ADVICE = "a call of ignite_tf_magic.register() in the process that reads"
_OPTIONS = ("needs", "part", "local", "page_size", "not_in", "snapshot", "order", "secrets")


@dataclass(frozen=True, slots=True)
class RecordAddress:
    """The contents of a record file's name.

    Attributes:
        name: `ASSIGNED`: what the opening process was assigned, or all if nothing was; `ALL`: everything, whatever was
            assigned; "part-7": one partition. Empty for the directory of these files.
        endpoint: The node to ask, unless the opening process's environment names one.
        part: Partitions as in IgniteDataset's `part`, unless the opening process was assigned some.
        local: As IgniteDataset's.
        page_size: As IgniteDataset's.
        not_in: The `THIS_PROCESS` of a process that must not read it.
        snapshot: What the dataset's maker knows of the cache, see `Snapshot`.
        order: Seed for the order of partitions; ascending without one.
        secrets: Token for `kept_secrets` in the process that made the name.
    """

    cache: str
    name: str = ASSIGNED
    endpoint: Endpoint | None = None
    part: str | None = None
    local: bool = False
    page_size: int | None = None
    not_in: str | None = None
    snapshot: str | None = None
    order: int | None = None
    secrets: str | None = None

    @property
    def partition(self) -> int | None:
        """The number of the partition, if this is the file of one."""
        number = self.name.removeprefix(PARTITION_PREFIX)
        return int(number) if number != self.name and number.isascii() and number.isdigit() else None

    def uri(self) -> str:
        """Return the name as text, to which "&order=SEED" may be appended."""
        at = f"{self.endpoint}/" if self.endpoint else ""
        values = (
            _ADVICE,
            self.part,
            "true" if self.local else None,
            self.page_size,
            self.not_in,
            self.snapshot,
            self.order,
            self.secrets,
        )
        given = {name: value for name, value in zip(_OPTIONS, values, strict=True) if value is not None}
        path = quote(self.cache, safe="") + (f"/{self.name}" if self.name else "")
        return f"{SCHEME}://{at}{path}?{urlencode(given, quote_via=quote, safe=' ()')}"

    @classmethod
    def parse(cls, uri: str) -> RecordAddress:
        """Parse a name.

        Raises:
            ConfigError: It does not name a file of a cache, or has options that do not exist.
        """
        path, _, query = uri.removeprefix(f"{SCHEME}://").partition("?")
        pieces = [piece for piece in path.split("/") if piece]
        has_endpoint = len(pieces) == 3 or (len(pieces) > 0 and ":" in pieces[0])
        endpoint = Endpoint.parse(pieces.pop(0)) if has_endpoint else None
        if not 1 <= len(pieces) <= 2:
            raise ConfigError(f"{uri!r} names no cache; write {SCHEME}://CACHE/{ASSIGNED}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(options.keys() - set(_OPTIONS))
        if unknown:
            raise ConfigError(f"record files have no option {unknown[0]!r}; they have {', '.join(_OPTIONS)}")
        found = cls(
            unquote(pieces[0]),
            unquote(pieces[1]) if len(pieces) == 2 else "",
            endpoint,
            options.get("part"),
            options.get("local") == "true",
            _number(options, "page_size"),
            options.get("not_in"),
            options.get("snapshot"),
            _number(options, "order"),
            options.get("secrets"),
        )
        if found.name not in ("", ASSIGNED, ALL) and found.partition is None:
            raise ConfigError(
                f"{uri!r}: a cache has the files {ASSIGNED}, {ALL} and {PARTITION_PREFIX}0, {PARTITION_PREFIX}1, ..."
            )
        return found


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"{name}={text!r} in the name of a record file: a number is needed")


def part_text(partitions: tuple[int, ...] | None) -> str | None:
    """Return partitions as text that `partition_ranges.parse_partitions` reads."""
    if partitions is None:
        return None
    return format_ranges(partitions) if partitions else "none"
