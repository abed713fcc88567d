"""Writing a file: blocks first, then one commit that makes the file use them."""

from __future__ import annotations

import os
import time
from enum import Enum

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import PathExists, PathIsDirectory, StaleFile
from ignite_tf_magic.igfs import journal, layout
from ignite_tf_magic.igfs.block_writer import BlockWriter
from ignite_tf_magic.igfs.collector import Collector
from ignite_tf_magic.igfs.found import Found
from ignite_tf_magic.igfs.journal import Garbage
from ignite_tf_magic.igfs.keeper import Keeper
from ignite_tf_magic.igfs.layout import TAIL_BYTES, DirectoryNode, Extent, FileNode
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.quota import Quota
from ignite_tf_magic.igfs.store import Changes, Store
from ignite_tf_magic.igfs.tree import Tree


class WriteMode(Enum):
    """What becomes of a file that is there."""

    REPLACE = "wb"
    CREATE = "xb"
    APPEND = "ab"


class FileWriter(Closing):
    """A file open for writing, for one thread. Nothing is seen of it before `flush` or `close`.

    As a context manager it commits at the end of the block, and leaves the old file when the block raises.

    Raises:
        PathExists: The file exists and the mode is CREATE.
        PathNotFound: Its directory does not exist.
        PathIsDirectory: A directory is there.
    """

    def __init__(
        self,
        store: Store,
        tree: Tree,
        keeper: Keeper,
        quota: Quota,
        collector: Collector,
        path: Path,
        mode: WriteMode,
    ) -> None:
        self._store = store
        self._tree = tree
        self._keeper = keeper
        self._collector = collector
        self.path = path
        self._mode = mode
        self._blocks = BlockWriter(store, keeper, quota)
        self._version = layout.new_id()
        self._began_ns = time.time_ns()
        self._run: list[Extent] = []
        self._rest = bytearray()
        # Blocks of a draft that could not be committed, because the file had grown meanwhile.
        self._wasted: list[Extent] = []
        self._drafted: list[Extent] = []
        self._published: FileNode | None = None
        self._kept_of: FileNode | None = None
        self._broken: BaseException | None = None
        self._size = 0
        self._closed = False
        self._process = os.getpid()
        self._found = self._begin()

    @property
    def closed(self) -> bool:
        """Whether it was closed or discarded."""
        return self._closed

    def tell(self) -> int:
        """Give the size that the file has when all is flushed."""
        return self._size

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Add bytes; gives how many. Blocks when 8 MiB are under way.

        Raises:
            NoSpace: The cluster's memory for data is nearly full.
        """
        self._must_be_open()
        view = memoryview(data).cast("B")
        try:
            self._take(view)
        except BaseException as error:
            self._broken = error  # what follows would leave a gap
            raise
        self._size += len(view)
        return len(view)

    def _take(self, view: memoryview) -> None:
        position, block_bytes = 0, self._store.block_bytes
        while position < len(view):
            if not self._rest and len(view) - position >= block_bytes:
                self._run.append(self._blocks.put(view[position : position + block_bytes]))
                position += block_bytes
                continue
            part = view[position : position + block_bytes - len(self._rest)]
            self._rest += part
            position += len(part)
            if len(self._rest) == block_bytes:
                self._run.append(self._blocks.put(self._rest))
                self._rest = bytearray()

    def keep(self, size: int) -> None:
        """Begin with the first `size` bytes of the file that is there, without copying its whole blocks.

        Only at once after opening in mode REPLACE.
        """
        there = self._found.node
        if not isinstance(there, FileNode) or self._run or self._size or size > there.size:
            raise ValueError("only the content of a file that is there can be kept, and only at first")
        kept, block = layout.cut(there, size)
        if block is not None:
            extent = Extent(*layout.writer_of(block.key), 1, block.num_bytes)
            self._rest += self._blocks.read([extent])[: size - block.start]
        tail_start = there.size - len(there.tail)
        self._rest += there.tail[: max(size - tail_start, 0)]
        self._run = list(kept)
        self._size = size
        self._kept_of = there

    def flush(self) -> None:
        """Publish what was written: every reader sees it, and it survives this process.

        Raises:
            StaleFile: Another replaced or removed the file meanwhile.
        """
        self._must_be_open()
        if self._run or self._rest or self._published is None:
            self._publish(keep=True)

    def close(self) -> None:
        """Publish the rest. When that fails, the file is as it was after the last flush."""
        if self._closed:
            return
        try:
            self._must_be_open()
            if self._run or self._rest or self._published is None:
                self._publish(keep=False)
        finally:
            self._end()

    def discard(self) -> None:
        """Give up what was not flushed."""
        if not self._closed:
            self._end()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def _end(self) -> None:
        self._closed = True
        self._rest = bytearray()
        if self._process == os.getpid():
            try:
                self._blocks.close(self._collector)
            finally:
                self._keeper.leave()

    def _must_be_open(self) -> None:
        if self._closed:
            raise ValueError("write to a closed igfs file")
        if self._process != os.getpid():
            raise ValueError("an igfs file that is open for writing belongs to the process that opened it")
        if self._broken is not None:
            raise self._broken

    def _begin(self) -> Found:
        self._keeper.begin()
        try:
            return self._check()
        except BaseException:
            self._keeper.leave()
            raise

    def _check(self) -> Found:
        found = self._tree.find(self.path)
        if not self.path or isinstance(found.node, DirectoryNode):
            raise PathIsDirectory("this is a directory", render(self.path))
        found.parent()
        if found.node is not None and self._mode is WriteMode.CREATE:
            raise PathExists("the file exists already", render(self.path))
        if self._mode is WriteMode.APPEND and found.node is not None:
            self._size = found.node.size
        return found

    def _publish(self, *, keep: bool) -> None:
        base = self._base()
        while True:
            try:
                node, superseded = self._draft(base)
            except StaleFile:
                old, base = base, self._base(refresh=True)
                if base == old:
                    raise
                continue  # another appender had merged the pieces that were to be merged
            self._blocks.finish()
            if self._commit(base, node, superseded, keep=keep):
                break
            base = self._base(refresh=True)
        self._published = node
        self._run, self._rest, self._wasted, self._drafted = [], bytearray(), [], []
        self._size = node.size

    def _base(self, *, refresh: bool = False) -> FileNode | None:
        """Give the file that is to grow; None when one is to be made."""
        if refresh:
            self._found = self._tree.find(self.path)
        node = self._found.node if self._mode is WriteMode.APPEND or self._published else None
        if self._published and (not isinstance(node, FileNode) or node.version != self._published.version):
            raise StaleFile("another replaced or removed this file while it was written", render(self.path))
        return node if isinstance(node, FileNode) else None

    def _draft(self, base: FileNode | None) -> tuple[FileNode, tuple[Extent, ...]]:
        """Write what is not written yet, and describe the new file; gives also the pieces that were merged."""
        now_ns = time.time_ns()
        self._wasted += self._drafted
        self._drafted = []
        if base is None:
            extents, tail = self._stored([*self._run], bytes(self._rest))
            return FileNode(self._version, self._began_ns, now_ns, layout.joined(extents), tail), ()
        data = base.tail + bytes(self._rest)
        merged: tuple[Extent, ...] = ()
        if self._run:
            head = [self._draft_block(base.tail, piece=True)] if base.tail else []
            extents, tail = self._stored([*base.extents, *head, *self._run], bytes(self._rest))
        elif len(data) <= TAIL_BYTES:
            extents, tail = list(base.extents), data
        else:
            merged = layout.victims(base.extents, len(data), self._store.block_bytes)
            kept = list(base.extents[: len(base.extents) - len(merged)])
            extents, tail = self._stored(kept, self._blocks.read(merged) + data if merged else data)
        return FileNode(base.version, base.created_ns, now_ns, layout.joined(extents), tail), merged

    def _stored(self, extents: list[Extent], data: bytes) -> tuple[list[Extent], bytes]:
        """Write data as whole blocks and a piece, behind extents that exist; a short rest is the tail."""
        block_bytes, view, position = self._store.block_bytes, memoryview(data), 0
        while len(data) - position >= block_bytes:
            extents.append(self._draft_block(view[position : position + block_bytes], piece=False))
            position += block_bytes
        rest = view[position:]
        if len(rest) <= TAIL_BYTES:
            return extents, bytes(rest)
        return [*extents, self._draft_block(rest, piece=True)], b""

    def _draft_block(self, data: bytes | memoryview, *, piece: bool) -> Extent:
        self._drafted.append(self._blocks.put(data, piece=piece))
        return self._drafted[-1]

    def _commit(
        self, base: FileNode | None, node: FileNode, merged: tuple[Extent, ...], *, keep: bool
    ) -> bool:
        """Make the file be `node`; False when it is not `base` any more."""
        record = layout.encode(node)
        there = self._found.node
        is_small = isinstance(there, FileNode) and (there == base or not there.extents) and not self._kept_of
        if is_small and not self._blocks.has_unsettled and not self._wasted:
            key = layout.entry_key(self._found.parent().id, self.path[-1])
            if self._store.compare_and_set(key, self._found.record, record):
                self._found = Found(self.path, (*self._found.nodes[:-1], node), record)
                return True
            if base is not None:
                return False
        found = self._store.transact(lambda changes: self._act(changes, base, node, merged, keep=keep))
        if found is None:
            return False
        self._found = Found(self.path, (*found.nodes[: len(self.path)], node), record)
        self._blocks.settled(keep=keep)
        return True

    def _act(
        self,
        changes: Changes,
        base: FileNode | None,
        node: FileNode,
        merged: tuple[Extent, ...],
        *,
        keep: bool,
    ) -> Found | None:
        """In a transaction: make the file be `node`; None when it is not `base` any more."""
        found = self._tree.find_to_change(changes, self.path)
        there = found.node
        if isinstance(there, FileNode) and self._was_committed(changes, there, node, keep=keep):
            return found
        if there is not None and there != base:
            if base is not None or self._mode is WriteMode.APPEND:
                return None
            if self._mode is WriteMode.CREATE:
                raise PathExists("another created this file meanwhile", render(self.path))
        if there is None and base is not None:
            return None
        if self._kept_of and not self._published and there != self._kept_of:
            raise StaleFile("another changed this file while it was cut", render(self.path))
        self._tree.put_file(changes, found, node)
        if freed := (*merged, *self._wasted):
            changes.write_journal(journal.garbage_row(Garbage(freed, superseded=True)))
        self._blocks.settle(changes, keep=keep)
        return found

    def _was_committed(self, changes: Changes, there: FileNode, node: FileNode, *, keep: bool) -> bool:
        if not changes.uncertain:
            return False
        return there == node or self._blocks.was_settled(changes, there, keep=keep)
