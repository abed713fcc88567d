"""Writes a file: blocks first, then one commit that makes the file use them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import OutcomeUnknown, PathExists, PathIsDirectory, StaleFile
from ignite_tf_magic.igfs import appends, journal, layout
from ignite_tf_magic.igfs.appends import AppendMark, Marks
from ignite_tf_magic.igfs.block_writer import BlockWriter, overlay
from ignite_tf_magic.igfs.collector import Collector
from ignite_tf_magic.igfs.found import ResolvedPath
from ignite_tf_magic.igfs.journal import Garbage
from ignite_tf_magic.igfs.layout import TAIL_BYTES, DirectoryNode, Extent, FileNode, Node
from ignite_tf_magic.igfs.lease_manager import LeaseManager
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.quota import Quota
from ignite_tf_magic.igfs.store import Changes, Store, Swap
from ignite_tf_magic.igfs.tree import Tree


class OpenMode(Enum):
    """What happens to an existing file."""

    REPLACE = "wb"
    CREATE = "xb"
    APPEND = "ab"


class FileWriter(Closing):
    """A file open for writing, for one thread. Nobody sees its content before `flush` or `close`.

    As a context manager it commits at the end of the block, and leaves the old file if the block raises.

    Raises:
        PathExists: The file exists and the mode is CREATE.
        PathNotFound: Its directory does not exist.
        PathIsDirectory: A directory is there.
    """

    def __init__(
        self,
        store: Store,
        tree: Tree,
        leases: LeaseManager,
        quota: Quota,
        collector: Collector,
        path: Path,
        mode: OpenMode,
    ) -> None:
        self._store = store
        self._tree = tree
        self._leases = leases
        self._collector = collector
        self.path = path
        self._mode = mode
        self._blocks = BlockWriter(store, leases, quota)
        self._version = layout.new_id()
        self._began_ns = time.time_ns()
        self._run: list[Extent] = []
        self._rest = bytearray()
        # Blocks of drafts that could not be committed, because the file had grown meanwhile.
        self._wasted: list[Extent] = []
        self._drafted: list[Extent] = []
        self._published: FileNode | None = None
        self._num_published = 0
        # Set before a commit is sent, and kept through exceptions until the outcome is known.
        self._attempt: _CommitAttempt | None = None
        self._kept_of: FileNode | None = None
        self._broken: BaseException | None = None
        self._size = 0
        self._closed = False
        self._process = os.getpid()
        self._found = self._begin()

    @property
    def closed(self) -> bool:
        """Whether the file was closed or discarded."""
        return self._closed

    def tell(self) -> int:
        """Return the size of the file once everything is flushed."""
        return self._size

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Add bytes and return their number; blocks while 8 MiB are in flight.

        If an earlier flush is in doubt, its outcome is determined first.

        Raises:
            OutcomeUnknown: The outcome of the earlier flush cannot be determined.
            NoSpace: The cluster's memory for data is nearly full.
        """
        self._must_be_open()
        if self._attempt is not None:
            self._publish(
                keep=True
            )  # publish the same bytes as before: otherwise nothing would show which of them arrived
        view = memoryview(data).cast("B")
        try:
            self._take(view)
        except BaseException as error:
            self._broken = error  # later writes would leave a gap
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

    def keep(self, size: int, data: Sequence[tuple[int, bytes]] = ()) -> None:
        """Start with the first `size` bytes of the existing file, and write `data` over them.

        The new file shares the old file's blocks. Call this only directly after opening in mode REPLACE.
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
        overlay(self._rest, size - len(self._rest), data)
        self._run = self._blocks.rewritten(kept, data) if data else list(kept)
        self._size = size
        self._kept_of = there

    def flush(self) -> None:
        """Publish what was written: every reader sees it, and it survives this process.

        Raises:
            StaleFile: Another client replaced or removed the file meanwhile.
            OutcomeUnknown: No answer came, and nothing shows whether the file contains what was written.
        """
        self._must_be_open()
        if self._run or self._rest or self._published is None:
            self._publish(keep=True)

    def close(self) -> None:
        """Publish the rest. If that fails, the file stays as it was after the last flush."""
        if self._closed:
            return
        try:
            self._must_be_open()
            if self._run or self._rest or self._published is None:
                self._publish(keep=False)
        finally:
            self._end()

    def discard(self) -> None:
        """Discard what was not flushed."""
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
                self._leases.leave()

    def _must_be_open(self) -> None:
        if self._closed:
            raise ValueError("write to a closed igfs file")
        if self._process != os.getpid():
            raise ValueError("an igfs file that is open for writing belongs to the process that opened it")
        if self._broken is not None:
            raise self._broken

    def _begin(self) -> ResolvedPath:
        self._leases.begin()
        try:
            return self._check()
        except BaseException:
            self._leases.leave()
            raise

    def _check(self) -> ResolvedPath:
        resolved = self._tree.find(self.path)
        if not self.path or isinstance(resolved.node, DirectoryNode):
            raise PathIsDirectory("this is a directory", render(self.path))
        resolved.parent()
        if resolved.node is not None and self._mode is OpenMode.CREATE:
            raise PathExists("the file exists already", render(self.path))
        if self._mode is OpenMode.APPEND and resolved.node is not None:
            self._size = resolved.node.size
        return resolved

    def _publish(self, *, keep: bool) -> None:
        if self._attempt is not None:
            self._found = self._tree.find(self.path)
        while not self._was_made():
            base = self._base()
            try:
                node, superseded = self._draft(base)
            except StaleFile:
                self._found = self._tree.find(self.path)
                if self._base() == base:
                    raise
                continue  # another appender has already merged the pieces that this draft would merge
            self._blocks.finish()
            if self._commit(base, node, superseded, keep=keep):
                return
            self._found = self._tree.find(self.path)

    def _base(self) -> FileNode | None:
        """Return the file that will grow; None to create a new one."""
        node = self._found.node if self._mode is OpenMode.APPEND or self._published else None
        if self._published and (not isinstance(node, FileNode) or node.version != self._published.version):
            raise StaleFile(
                "another process replaced or removed this file while it was written", render(self.path)
            )
        return node if isinstance(node, FileNode) else None

    @property
    def _mark(self) -> AppendMark:
        """The mark of the next publication; the same bytes keep it through all attempts."""
        return appends.mark_of(self._blocks.writer, self._num_published + 1)

    def _was_made(self) -> bool:
        """Return whether an unanswered commit was made; afterwards it is no longer in doubt."""
        attempt = self._attempt
        is_made = attempt is not None and self._is_made(attempt, self._found.node, self._store.journal.get)
        if attempt is not None and is_made:
            self._note_made(attempt)
        self._attempt = None
        return is_made

    def _is_made(
        self, attempt: _CommitAttempt, there: Node | None, read_journal: Callable[[str], bytes | None]
    ) -> bool:
        """Return whether an attempt was made, as the current file or the journal shows.

        Raises:
            OutcomeUnknown: The current file does not show it.
        """
        base = attempt.base
        if attempt.in_transaction and self._blocks.was_settled(read_journal):
            return True
        if isinstance(there, FileNode):
            is_made_whole = not self._published and there.version == self._version
            if is_made_whole or appends.holds(there.marks, self._mark):
                return True
            if base is None or there == base:
                return False
            if there.version == base.version and not appends.may_be_forgotten(base.marks, there.marks):
                return False
        elif base is None:
            return False
        raise OutcomeUnknown(
            "a commit was not answered, and others have changed, replaced or removed the file since: whether it holds "
            "what was written is unknown. Check the file before writing it again",
            render(self.path),
        )

    def _note_made(self, attempt: _CommitAttempt) -> None:
        """Record that the attempt was published."""
        self._published = attempt.node
        self._num_published += 1
        self._run, self._rest, self._wasted, self._drafted = [], bytearray(), [], []
        self._size = attempt.node.size
        if attempt.in_transaction:
            self._blocks.settled(keep=attempt.keep)
        self._attempt = None

    def _draft(self, base: FileNode | None) -> tuple[FileNode, tuple[Extent, ...]]:
        """Write all unwritten data, and return the node of the new file and the pieces that were merged."""
        now_ns = time.time_ns()
        self._wasted += self._drafted
        self._drafted = []
        if base is None:
            extents, tail = self._stored([*self._run], bytes(self._rest))
            made = FileNode(self._version, self._began_ns, now_ns, layout.joined(extents), tail)
            return replace(made, marks=self._first_marks()), ()
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
        marks = appends.marked(base.marks, self._mark)
        return FileNode(base.version, base.created_ns, now_ns, layout.joined(extents), tail, marks), merged

    def _first_marks(self) -> Marks:
        """Return the marks of a new file: its version shows who made it, until another client cuts it."""
        if self._mode is OpenMode.APPEND:
            return (self._mark,)
        return self._kept_of.marks if self._kept_of else ()

    def _stored(self, extents: list[Extent], data: bytes) -> tuple[list[Extent], bytes]:
        """Write data as whole blocks and a piece, after existing extents; a short rest becomes the tail."""
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
        """Make the file be `node`; return False if it is no longer `base`, or the outcome is unknown."""
        record = layout.encode(node)
        there = self._found.node
        is_small = isinstance(there, FileNode) and (there == base or not there.extents) and not self._kept_of
        if is_small and not self._blocks.has_unsettled and not self._wasted:
            self._attempt = _CommitAttempt(base, node, keep)
            key = layout.entry_key(self._found.parent().id, self.path[-1])
            swap = self._store.compare_and_set(key, self._found.record, record)
            if swap is Swap.DONE:
                self._found = ResolvedPath(self.path, (*self._found.nodes[:-1], node), record)
                self._note_made(self._attempt)
                return True
            if swap is Swap.REFUSED:
                self._attempt = None
            if base is not None or swap is Swap.UNKNOWN:
                return False
        if base is None and self._mode is OpenMode.APPEND:
            # If another client moves the file at once, its mark goes with it; the journal's record stays.
            self._blocks.leave_trace()
            keep = True
        self._attempt = attempt = _CommitAttempt(base, node, keep, in_transaction=True)
        outcome = self._store.transact(lambda changes: self._act(changes, attempt, merged))
        if outcome is None:
            self._attempt = None  # the transaction settled it
            return False
        self._found = ResolvedPath(self.path, (*outcome.nodes[: len(self.path)], node), record)
        self._note_made(attempt)
        return True

    def _act(
        self, changes: Changes, attempt: _CommitAttempt, merged: tuple[Extent, ...]
    ) -> ResolvedPath | None:
        """Replace the file by the draft, in a transaction; return None if its base has changed."""
        base, node = attempt.base, attempt.node
        resolved = self._tree.find_to_change(changes, self.path)
        there = resolved.node
        if changes.uncertain and self._is_made(attempt, there, changes.read_journal):
            return resolved
        if there is not None and there != base:
            if base is not None or self._mode is OpenMode.APPEND:
                return None
            if self._mode is OpenMode.CREATE:
                raise PathExists("another process created this file meanwhile", render(self.path))
        if there is None and base is not None:
            return None
        if self._kept_of and not self._published and there != self._kept_of:
            raise StaleFile("another process changed this file while it was cut", render(self.path))
        self._tree.put_file(changes, resolved, node)
        if freed := (*merged, *self._wasted):
            changes.write_journal(journal.garbage_row(Garbage(freed, superseded=True)))
        self._blocks.settle(changes, keep=attempt.keep)
        return resolved


class _CommitAttempt(NamedTuple):
    """A commit whose outcome is not known yet.

    Attributes:
        base: The file before the commit; None to create one.
        node: The file after the commit.
    """

    base: FileNode | None
    node: FileNode
    keep: bool
    in_transaction: bool = False
