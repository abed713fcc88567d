"""Records of current work and of cleanup: who writes, who reads, what is garbage. Pure.

- An *intent* names blocks that were or will be written and that no file uses yet. It is written before them, and the
  commit that makes a file use them removes it in the same transaction. A writer that dies leaves it behind.
- *Garbage* names blocks, or a whole directory, that no file uses any more. The transaction that replaces or removes the
  file writes it, and it stays until nobody reads the blocks.
- A *lease* shows that a client is alive and whose blocks it is reading. The server forgets a lease that is not renewed,
  so no clocks are compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ignite_tf_magic.errors import CorruptRecord
from ignite_tf_magic.igfs.layout import FIRST_PIECE, ID_BYTES, Extent, new_id

INTENT, GARBAGE, LEASE = "w/", "g/", "c/"


@dataclass(frozen=True, slots=True)
class Intent:
    """Blocks of a writer that no file uses: ranges of whole blocks and of pieces, each excluding its end."""

    client: int
    blocks: tuple[int, int]
    pieces: tuple[int, int]

    def extents(self, writer: int) -> tuple[Extent, ...]:
        """Return the blocks; their sizes are unknown."""
        ranges = (self.blocks, self.pieces)
        return tuple(Extent(writer, first, end - first, 1) for first, end in ranges if end > first)


@dataclass(frozen=True, slots=True)
class Garbage:
    """Blocks that no file uses any more, and removed directories.

    Attributes:
        superseded: Whether other blocks of the same file hold the same bytes, so that its readers find them there.
        directories: Ids of directories whose contents are to be removed.
    """

    extents: tuple[Extent, ...] = ()
    superseded: bool = False
    directories: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """A living client: the number of times it renewed the lease, and the writers whose blocks it reads."""

    counter: int
    writers: frozenset[int]


JournalRecord = Intent | Garbage | Lease


def key(prefix: str, number: int) -> str:
    """Return the key of a record: `key(INTENT, writer)`, `key(GARBAGE, id)`, `key(LEASE, client)`."""
    return f"{prefix}{number:0{2 * ID_BYTES}x}"


def number_of(record_key: str) -> int:
    """Return the number in a record's key."""
    return int(record_key[2:], 16)


def garbage_row(garbage: Garbage) -> dict[str, bytes]:
    """Return a new garbage record as a row to write."""
    return {key(GARBAGE, new_id()): encode(garbage)}


def empty_intent(client: int) -> Intent:
    """Return the intent of a writer that has reserved nothing."""
    return Intent(client, (0, 0), (FIRST_PIECE, FIRST_PIECE))


def encode(record: JournalRecord) -> bytes:
    """Encode a record as a row's value."""
    if isinstance(record, Intent):
        return json.dumps([record.client, record.blocks, record.pieces]).encode()
    if isinstance(record, Garbage):
        return json.dumps([record.extents, record.superseded, record.directories]).encode()
    return json.dumps([record.counter, sorted(record.writers)]).encode()


def decode(record_key: str, value: bytes) -> JournalRecord:
    """Decode a row's value.

    Raises:
        CorruptRecord: It is not such a record.
    """
    try:
        fields = json.loads(value)
        if record_key.startswith(INTENT):
            client, blocks, pieces = fields
            return Intent(client, tuple(blocks), tuple(pieces))
        if record_key.startswith(GARBAGE):
            extents, superseded, directories = fields
            return Garbage(tuple(Extent(*e) for e in extents), superseded, tuple(directories))
        counter, writers = fields
        return Lease(counter, frozenset(writers))
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"the journal's record {record_key} is damaged ({error})") from None
