"""Reads a file's blocks: whole ones directly into their destination, upcoming ones in advance."""

from __future__ import annotations

import os
from collections import OrderedDict

from ignite_tf_magic.client.pipeline import Pipeline, Ticket
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import PathIsDirectory, StaleFile
from ignite_tf_magic.igfs.layout import Block, BlockMap, FileNode
from ignite_tf_magic.igfs.lease_manager import LeaseManager
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.store import ProcessLock, Store
from ignite_tf_magic.igfs.tree import Tree

_AHEAD_BLOCKS = 6
_KEPT_BLOCKS = 2
_MAX_UNDER_WAY = 8
_TRIES = 4


class FileReader(Closing):
    """A file open for reading at any offset. Thread-safe. The caller closes it.

    It reads the content that the file had when it was opened, even after the file was replaced or removed. It sees what
    is appended to that content.

    Raises:
        PathNotFound: Nothing is there.
        PathIsDirectory: A directory is there.
    """

    def __init__(self, store: Store, tree: Tree, leases: LeaseManager, path: Path) -> None:
        self._store = store
        self._tree = tree
        self._leases = leases
        self.path = path
        self._lock = ProcessLock()
        self._has_lease = False
        self._pipeline: Pipeline | None = None
        self._process = os.getpid()
        self._ahead: OrderedDict[Block, tuple[Ticket, bytearray]] = OrderedDict()
        self._next_offset = 0
        self._closed = False
        self._node = self._open()
        self._map = BlockMap(self._node)

    def close(self) -> None:
        """Release the connections and the old content."""
        with self._lock:
            self._notice_fork()
            self._drop_pipeline()
            if self._has_lease:
                self._leases.let_go(self._node.writers)
                self._leases.leave()
                self._has_lease = False
            self._closed = True

    @property
    def node(self) -> FileNode:
        """The file's node as it was last read."""
        return self._node

    def read_into(self, offset: int, space: memoryview) -> int:
        """Read bytes from an offset and return their number: fewer than requested only at the end of the file.

        Raises:
            StaleFile: The file was replaced or removed so long ago that its content is gone.
            ConnectionFailed: No node answers.
        """
        with self._lock:
            if self._closed:
                raise ValueError("read from a closed igfs file")
            self._notice_fork()
            try:
                return self._read_into(offset, space)
            except BaseException:
                self._drop_pipeline()  # else late answers would be written into reused memory
                raise

    def _read_into(self, offset: int, space: memoryview) -> int:
        if not self._has_lease:
            self._protect(self._node)
        if offset + len(space) > self._node.size:
            self._refresh()
        for _ in range(_TRIES):
            wanted = min(len(space), self._node.size - offset)
            if wanted <= 0:
                return 0
            if self._fill(offset, space[:wanted]):
                self._next_offset = offset + wanted
                return wanted
            self._refresh()  # pieces were merged meanwhile: the same bytes are elsewhere now
        raise StaleFile(
            "the file was replaced or removed while it was open, and its old content is gone: this reader was "
            "idle or cut off for too long. Open it again",
            render(self.path),
        )

    def _open(self) -> FileNode:
        node = self._find()
        if not node.extents:
            return node
        is_new = not self._leases.has_lease
        self._leases.enter()
        self._has_lease = True
        try:
            if is_new:
                node = self._find()  # a sweep may have removed the first result before there was a lease
        except BaseException:
            self._leases.leave()
            raise
        self._leases.hold(node.writers)
        return node

    def _notice_fork(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._pipeline = None  # the connections and the lease belong to the parent
            self._ahead.clear()
            self._has_lease = False

    def _find(self) -> FileNode:
        with self._leases.use():
            node = self._tree.find(self.path).must()
        if not isinstance(node, FileNode):
            raise PathIsDirectory("this is a directory", render(self.path))
        return node

    def _refresh(self) -> None:
        """Look for appended content; ignore another file of the same name."""
        with self._leases.use():
            found = self._tree.find(self.path).node
        if isinstance(found, FileNode) and found.version == self._node.version and found != self._node:
            before, self._node, self._map = self._node, found, BlockMap(found)
            self._protect(found)
            if self._has_lease and before.extents:
                self._leases.let_go(before.writers)

    def _protect(self, node: FileNode) -> None:
        if not node.extents:
            return
        if not self._has_lease:
            self._leases.enter()
            self._has_lease = True
        self._leases.hold(node.writers)

    def _fill(self, offset: int, space: memoryview) -> bool:
        """Copy existing bytes into `space`; return False if a block was missing."""
        stop, tail_start = offset + len(space), self._map.tail_start
        if stop > tail_start:
            begin = max(offset, tail_start)
            space[begin - offset :] = self._node.tail[begin - tail_start : stop - tail_start]
        if offset >= tail_start:
            return True
        complete = self._fill_from_blocks(offset, space[: tail_start - offset])
        if stop >= tail_start:
            self._drop_pipeline()  # the end of the blocks: further reading is unlikely
        return complete

    def _fill_from_blocks(self, offset: int, space: memoryview) -> bool:
        stop = offset + len(space)
        direct: list[Ticket] = []
        complete = True
        for block in self._map.between(offset, stop):
            start, end = max(block.start, offset), min(block.start + block.num_bytes, stop)
            part = space[start - offset : end - offset]
            if len(part) == block.num_bytes and block not in self._ahead:
                direct.append(self._open_pipeline().read(block.key, part))
                if len(direct) >= _MAX_UNDER_WAY:
                    complete &= self._finished(direct.pop(0))
            else:
                complete &= self._copy(block, start - block.start, part)
        sequential = offset == self._next_offset
        if sequential and complete:
            self._read_ahead(stop)
        for ticket in direct:
            complete &= self._finished(ticket)
        return complete

    def _finished(self, ticket: Ticket) -> bool:
        self._open_pipeline().finish([ticket])
        return ticket.found

    def _copy(self, block: Block, skip: int, part: memoryview) -> bool:
        """Copy from a block that was read in advance or is kept; else read it and keep it."""
        if block not in self._ahead:
            self._request(block)
        ticket, data = self._ahead[block]
        if not self._finished(ticket):
            del self._ahead[block]
            return False
        part[:] = memoryview(data)[skip : skip + len(part)]
        self._trim()
        return True

    def _request(self, block: Block) -> None:
        data = bytearray(block.num_bytes)
        self._ahead[block] = self._open_pipeline().read(block.key, memoryview(data)), data

    def _read_ahead(self, offset: int) -> None:
        end = min(offset + _AHEAD_BLOCKS * self._store.block_bytes, self._map.tail_start)
        for block in self._map.between(offset, end):
            if block not in self._ahead:
                self._request(block)

    def _trim(self) -> None:
        while len(self._ahead) > _AHEAD_BLOCKS + _KEPT_BLOCKS:
            ticket, _ = self._ahead.popitem(last=False)[1]
            self._finished(ticket)

    def _open_pipeline(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = self._store.pipeline()
        return self._pipeline

    def _drop_pipeline(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = None
        self._ahead.clear()
