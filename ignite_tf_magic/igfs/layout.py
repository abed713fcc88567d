"""Layout of a file in rows: its node (metadata), and the extents that name its blocks. Pure.

A file's content is its extents, in order, and then its tail, a few bytes kept in the node itself. An extent is a run of
equally large blocks by one writer; blocks are never rewritten. A file that grows by many small flushes collects pieces,
which are merged 16 at a time. A flush of 100 bytes therefore rewrites only a node of some hundred bytes, and each byte
is rewritten at most three times before it is in a whole block.
"""

from __future__ import annotations

import bisect
import secrets
import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from ignite_tf_magic.errors import CorruptRecord
from ignite_tf_magic.igfs import appends
from ignite_tf_magic.igfs.appends import Marks

BLOCK_BYTES = 1024 * 1024
TAIL_BYTES = 4096
_MERGE_COUNT = 16
_SMALL_PIECE_BYTES = _MERGE_COUNT * TAIL_BYTES

ROOT_ID = 0
ID_BYTES = 11
_INDEX_BITS = 40
# Pieces are numbered apart from whole blocks, so that whole blocks stay one run whatever is merged meanwhile.
FIRST_PIECE = 1 << (_INDEX_BITS - 1)

_FORMAT = 1
_HEAD = struct.Struct("<BB")
_FILE = struct.Struct("<qqHII")
_EXTENT = struct.Struct("<HQII")
_CHECKSUM = struct.Struct("<I")


class NodeKind:
    """The second byte of a node's record."""

    FILE = 1
    DIRECTORY = 2


class Extent(NamedTuple):
    """Blocks `first` to `first + num_blocks - 1` of a writer, each of `block_bytes`."""

    writer: int
    first: int
    num_blocks: int
    block_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes in all its blocks."""
        return self.num_blocks * self.block_bytes

    def block_keys(self) -> list[uuid.UUID]:
        """Return the keys of its blocks, in order."""
        return [block_key(self.writer, index) for index in range(self.first, self.first + self.num_blocks)]


@dataclass(frozen=True, slots=True)
class FileNode:
    """The directory entry of a file.

    Attributes:
        version: Changes when the content is replaced, not when it grows.
        created_ns: Creation time, in nanoseconds since 1970.
        mtime_ns: Modification time, in nanoseconds since 1970.
        extents: All but the last bytes of the content.
        tail: The last bytes.
        marks: The last appends.
    """

    version: int
    created_ns: int
    mtime_ns: int
    extents: tuple[Extent, ...] = ()
    tail: bytes = field(default=b"", repr=False)
    marks: Marks = field(default=(), repr=False)

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return sum(extent.num_bytes for extent in self.extents) + len(self.tail)

    @property
    def writers(self) -> frozenset[int]:
        """The writers of its blocks."""
        return frozenset(extent.writer for extent in self.extents)


@dataclass(frozen=True, slots=True)
class DirectoryNode:
    """The directory entry of a directory. Its children are found by its id, whatever its name.

    Attributes:
        set_mtime_ns: A modification time that was set explicitly; None if there is none.
    """

    id: int
    created_ns: int
    set_mtime_ns: int | None = None

    @property
    def mtime_ns(self) -> int:
        """The creation time, unless another time was set; changes inside do not touch the directory's node."""
        return self.created_ns if self.set_mtime_ns is None else self.set_mtime_ns


Node = FileNode | DirectoryNode


def new_id() -> int:
    """Return a unique id."""
    return secrets.randbits(8 * ID_BYTES - 1) + 1


def block_key(writer: int, index: int) -> uuid.UUID:
    """Return the key of a block; consecutive blocks lie in different partitions."""
    return uuid.UUID(int=writer << _INDEX_BITS | index)


def writer_of(key: uuid.UUID) -> tuple[int, int]:
    """Return the writer and the index of a block's key."""
    return key.int >> _INDEX_BITS, key.int & ((1 << _INDEX_BITS) - 1)


def entry_key(directory: int, name: str) -> str:
    """Return the key of a directory entry."""
    return f"e/{directory:0{2 * ID_BYTES}x}/{name}"


def encode(node: Node) -> bytes:
    """Encode a node as a row's value."""
    if isinstance(node, DirectoryNode):
        # Earlier versions of this package skip everything after the first time.
        times = [node.created_ns] if node.set_mtime_ns is None else [node.created_ns, node.set_mtime_ns]
        body = _HEAD.pack(_FORMAT, NodeKind.DIRECTORY) + _id(node.id) + struct.pack(f"<{len(times)}q", *times)
    else:
        body = _encode_file(node)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _encode_file(node: FileNode) -> bytes:
    writers = {writer: number for number, writer in enumerate(dict.fromkeys(e.writer for e in node.extents))}
    parts = [_HEAD.pack(_FORMAT, NodeKind.FILE), _id(node.version)]
    parts.append(_FILE.pack(node.created_ns, node.mtime_ns, len(writers), len(node.extents), len(node.tail)))
    parts += [_id(writer) for writer in writers]
    parts += [_EXTENT.pack(writers[e.writer], e.first, e.num_blocks, e.block_bytes) for e in node.extents]
    # Earlier versions of this package find the tail from the end, and skip what precedes it.
    return b"".join([*parts, appends.encode(node.marks), node.tail])


def _id(number: int) -> bytes:
    return number.to_bytes(ID_BYTES, "little")


def decode(record: bytes) -> Node:
    """Decode a row's value.

    Raises:
        CorruptRecord: It is not such a record, or a later version of this package wrote it.
    """
    body = record[: -_CHECKSUM.size]
    if len(record) < _HEAD.size + _CHECKSUM.size or _CHECKSUM.unpack(record[-4:])[0] != zlib.crc32(body):
        raise CorruptRecord(f"a file's record of {len(record)} bytes is damaged")
    form, kind = _HEAD.unpack_from(body)
    if form != _FORMAT:
        raise CorruptRecord(
            f"a file's record has format {form}; this ignite_tf_magic reads {_FORMAT}: update it"
        )
    identity = int.from_bytes(body[2 : 2 + ID_BYTES], "little")
    if kind == NodeKind.DIRECTORY:
        num_times = min((len(body) - 2 - ID_BYTES) // 8, 2)
        return DirectoryNode(identity, *struct.unpack_from(f"<{num_times}q", body, 2 + ID_BYTES))
    return _decode_file(identity, body)


def _decode_file(version: int, body: bytes) -> FileNode:
    position = 2 + ID_BYTES
    created_ns, mtime_ns, num_writers, num_extents, tail_bytes = _FILE.unpack_from(body, position)
    position += _FILE.size
    raw = body[position : position + num_writers * ID_BYTES]
    writers = [int.from_bytes(raw[n : n + ID_BYTES], "little") for n in range(0, len(raw), ID_BYTES)]
    position += len(raw)
    extents = body[position : position + num_extents * _EXTENT.size]
    position += len(extents)
    tail_start = len(body) - tail_bytes
    return FileNode(
        version,
        created_ns,
        mtime_ns,
        tuple(Extent(writers[number], *rest) for number, *rest in _EXTENT.iter_unpack(extents)),
        body[tail_start:],
        appends.decode(body[position:tail_start]),
    )


class Block(NamedTuple):
    """One block of a file and its place in it."""

    key: uuid.UUID
    start: int
    num_bytes: int


class BlockMap:
    """Finds the block at an offset of a file."""

    def __init__(self, node: FileNode) -> None:
        self._extents = node.extents
        self._starts = list(accumulate((extent.num_bytes for extent in node.extents), initial=0))

    @property
    def tail_start(self) -> int:
        """The offset at which the blocks end and the tail begins."""
        return self._starts[-1]

    def at(self, offset: int) -> Block:
        """Return the block that holds a byte before `tail_start`."""
        number = bisect.bisect_right(self._starts, offset) - 1
        extent = self._extents[number]
        step, start = (offset - self._starts[number]) // extent.block_bytes, self._starts[number]
        return Block(
            block_key(extent.writer, extent.first + step),
            start + step * extent.block_bytes,
            extent.block_bytes,
        )

    def between(self, start: int, stop: int) -> list[Block]:
        """Return the blocks that hold the bytes from `start` to before `stop`, without the tail."""
        found = []
        while start < min(stop, self.tail_start):
            block = self.at(start)
            found.append(block)
            start = block.start + block.num_bytes
        return found


def joined(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """Merge neighbouring extents that continue each other; leave out empty ones."""
    runs: list[Extent] = []
    for extent in extents:
        if not extent.num_blocks:
            continue
        last = runs[-1] if runs else None
        if (
            last
            and last[:2] == (extent.writer, extent.first - last.num_blocks)
            and last[3] == extent.block_bytes
        ):
            runs[-1] = last._replace(num_blocks=last.num_blocks + extent.num_blocks)
        else:
            runs.append(extent)
    return tuple(runs)


def victims(extents: Sequence[Extent], more_bytes: int, block_bytes: int = BLOCK_BYTES) -> tuple[Extent, ...]:
    """Return the last pieces of a file that are to be merged with the following `more_bytes`.

    All pieces, if they make a whole block together; else the small ones, if there are 15 of them.
    """
    pieces = _last_below(extents, block_bytes)
    if sum(piece.num_bytes for piece in pieces) + more_bytes >= block_bytes:
        return pieces
    small = _last_below(pieces, _SMALL_PIECE_BYTES)
    return small if sum(piece.num_blocks for piece in small) + 1 >= _MERGE_COUNT else ()


def _last_below(extents: Sequence[Extent], block_bytes: int) -> tuple[Extent, ...]:
    first = len(extents)
    while first and extents[first - 1].block_bytes < block_bytes:
        first -= 1
    return tuple(extents[first:])


def cut(node: FileNode, size: int) -> tuple[tuple[Extent, ...], Block | None]:
    """Return the blocks of a file that lie before a size, and the block that it cuts."""
    kept: list[Extent] = []
    start = 0
    for extent in node.extents:
        whole = min(max(size - start, 0) // extent.block_bytes, extent.num_blocks)
        kept.append(extent._replace(num_blocks=whole))
        edge = start + whole * extent.block_bytes
        if whole < extent.num_blocks:
            key = block_key(extent.writer, extent.first + whole)
            return joined(kept), Block(key, edge, extent.block_bytes) if edge < size else None
        start += extent.num_bytes
    return joined(kept), None


def without(extents: Sequence[Extent], kept: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the blocks in `extents` that `kept`, which starts with some of them, does not use."""
    if not {extent.writer for extent in extents} & {extent.writer for extent in kept}:
        return tuple(extents)
    used = {
        (extent.writer, index)
        for extent in kept
        for index in range(extent.first, extent.first + extent.num_blocks)
    }
    singles = [
        extent._replace(first=index, num_blocks=1)
        for extent in extents
        for index in range(extent.first, extent.first + extent.num_blocks)
        if (extent.writer, index) not in used
    ]
    return joined(singles)
