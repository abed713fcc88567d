"""Writes blocks that no file uses yet, so that they can be found again if the writer dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ignite_tf_magic.client.pipeline import Pipeline, Ticket
from ignite_tf_magic.errors import IgniteTfError, OutcomeUnknown, StaleFile
from ignite_tf_magic.igfs import journal, layout
from ignite_tf_magic.igfs.collector import Collector
from ignite_tf_magic.igfs.journal import INTENT, Intent
from ignite_tf_magic.igfs.layout import FIRST_PIECE, Extent
from ignite_tf_magic.igfs.lease_manager import LeaseManager
from ignite_tf_magic.igfs.quota import Quota
from ignite_tf_magic.igfs.store import Changes, Store, Swap

_MAX_UNDER_WAY = 8
_FIRST_RESERVATION = 16
_MAX_RESERVATION = 4096
_TAKEN_FOR_DEAD = (
    "this writer was cut off from the cluster for so long that others took it for dead and discarded its "
    "unpublished data. Write the file again"
)
_PERHAPS_TAKEN_FOR_DEAD = (
    "a commit was not answered, and another process has replaced or removed the file since: whether it succeeded is "
    "unknown. Check the file, and write it again if it is wrong"
)


class BlockWriter:
    """Writes blocks under one writer's id, after reserving them in the journal."""

    def __init__(self, store: Store, leases: LeaseManager, quota: Quota) -> None:
        self._store = store
        self._leases = leases
        self._quota = quota
        self.writer = layout.new_id()
        self._intent: Intent | None = None
        # Whether the journal holds exactly `_intent`.
        self._is_journalled = False
        self._next_block = 0
        self._next_piece = FIRST_PIECE
        self._pipeline: Pipeline | None = None
        self._under_way: list[Ticket] = []
        # Others have removed the blocks that they knew of; only this object knows of later ones.
        self._taken_for_dead = False

    @property
    def intent_key(self) -> str:
        """The key of the journal's record of blocks that no file uses yet."""
        return journal.key(INTENT, self.writer)

    @property
    def has_unsettled(self) -> bool:
        """Whether blocks were written that no file uses yet."""
        if self._intent is None:
            return False
        return (self._intent.blocks[0], self._intent.pieces[0]) != (self._next_block, self._next_piece)

    def put(self, data: bytes | bytearray | memoryview, *, piece: bool = False) -> Extent:
        """Start to write a block; up to 8 blocks are in flight."""
        index = self._reserve(piece)
        self._quota.take(len(data))
        if self._pipeline is None:
            self._pipeline = self._store.pipeline()
        while len(self._under_way) >= _MAX_UNDER_WAY:
            self._pipeline.finish([self._under_way.pop(0)])
        self._under_way.append(self._pipeline.write(layout.block_key(self.writer, index), data))
        return Extent(self.writer, index, 1, len(data))

    def finish(self) -> None:
        """Wait until all blocks are written."""
        if self._pipeline is not None:
            self._pipeline.finish(self._under_way)
            self._under_way.clear()

    def read(self, extents: Iterable[Extent]) -> bytes:
        """Read existing blocks, small ones that will be merged.

        Raises:
            StaleFile: One is gone.
        """
        parts = [(key, bytearray(extent.block_bytes)) for extent in extents for key in extent.block_keys()]
        with self._store.pipeline() as pipeline:
            tickets = [pipeline.read(key, memoryview(space)) for key, space in parts]
            pipeline.finish(tickets)
        if not all(ticket.found for ticket in tickets):
            raise StaleFile("the file changed while it was appended to")
        return b"".join(space for _, space in parts)

    def rewritten(self, extents: Sequence[Extent], data: Sequence[tuple[int, bytes]]) -> list[Extent]:
        """Write new blocks in place of those in which bytes of a file change; keep the others.

        Args:
            extents: All blocks of the file, from its beginning.
            data: The bytes to write and their offsets, in order; anything after the blocks is left out.
        """
        blocks: list[Extent] = []
        start = 0
        for extent in extents:
            for index in range(extent.first, extent.first + extent.num_blocks):
                block = extent._replace(first=index, num_blocks=1)
                end = start + extent.block_bytes
                if any(offset < end and offset + len(part) > start for offset, part in data):
                    content = bytearray(self.read([block]))
                    overlay(content, start, data)
                    block = self.put(content, piece=len(content) < self._store.block_bytes)
                blocks.append(block)
                start = end
        return list(layout.joined(blocks))

    def settle(self, changes: Changes, *, keep: bool) -> None:
        """Take all blocks written so far out of the journal.

        Runs in the transaction that makes a file use them.

        Raises:
            StaleFile: The journal's record is gone: others took this writer for dead.
            OutcomeUnknown: It is gone, perhaps by an earlier attempt at this transaction.
        """
        if self._intent is None:
            return
        expected = journal.encode(self._intent) if self._is_journalled else None
        if changes.read_journal(self.intent_key) != expected:
            if changes.uncertain:
                raise OutcomeUnknown(_PERHAPS_TAKEN_FOR_DEAD)
            self._taken_for_dead = True
            raise StaleFile(_TAKEN_FOR_DEAD)
        left = self._left(keep)
        changes.write_journal({self.intent_key: journal.encode(left) if left else None})

    def leave_trace(self) -> None:
        """Make the next commit with `keep` leave a record in the journal even if no blocks were written."""
        if self._intent is None:
            self._first_intent()

    def was_settled(self, read: Callable[[str], bytes | None]) -> bool:
        """Return whether the journal shows that an attempt at a commit with `keep` was made.

        A commit that removes the intent leaves no evidence: the intent of a writer taken for dead is removed, too.

        Args:
            read: Reads a record of the journal.
        """
        left = self._left(keep=True) if self.has_unsettled or not self._is_journalled else None
        return left is not None and read(self.intent_key) == journal.encode(left)

    def _left(self, keep: bool) -> Intent | None:
        if self._intent is None or not keep:
            return None
        blocks, pieces = self._intent.blocks[1], self._intent.pieces[1]
        return Intent(self._intent.client, (self._next_block, blocks), (self._next_piece, pieces))

    def settled(self, *, keep: bool) -> None:
        """Record that the transaction was committed."""
        if self._intent is not None:
            self._intent = self._left(keep)
            self._is_journalled = keep
            if self._intent is None:
                self._leases.leave()

    def close(self, collector: Collector) -> None:
        """Release the connections, and abandon blocks that no file uses."""
        if self._pipeline is not None:
            with self._pipeline, suppress(IgniteTfError):
                self.finish()  # else a block still in flight would arrive after its removal
            self._pipeline = None
        if self._intent is None:
            return
        wrote, written, self._intent = self.has_unsettled, self._unsettled(), None
        try:
            if self._taken_for_dead:
                collector.remove_blocks(written)
            elif wrote:
                collector.abandon(self.intent_key)
            else:
                self._store.journal.remove(self.intent_key)  # it names only blocks that were never written
        finally:
            self._leases.leave()

    def _unsettled(self) -> tuple[Extent, ...]:
        """Return the written blocks that no file uses, without their sizes."""
        if self._intent is None:
            return ()
        first_block, first_piece = self._intent.blocks[0], self._intent.pieces[0]
        ends = (first_block, self._next_block), (first_piece, self._next_piece)
        return Intent(self._intent.client, *ends).extents(self.writer)

    def _reserve(self, piece: bool) -> int:
        index = self._next_piece if piece else self._next_block
        before = self._intent if self._is_journalled else None
        intent = self._intent or self._first_intent()
        first, end = intent.pieces if piece else intent.blocks
        if index >= end:
            grown = (first, index + min(max(_FIRST_RESERVATION, index - first), _MAX_RESERVATION))
            pair = (intent.blocks, grown) if piece else (grown, intent.pieces)
            self._write_intent(before, Intent(intent.client, *pair))
        if piece:
            self._next_piece += 1
        else:
            self._next_block += 1
        return index

    def _first_intent(self) -> Intent:
        self._store.prepare_to_write()
        self._intent = journal.empty_intent(self._leases.enter())
        return self._intent

    def _write_intent(self, before: Intent | None, intent: Intent) -> None:
        """Write the intent, by compare-and-set if the journal has one already.

        If the comparison fails, others have taken this writer for dead, and its first blocks may be gone.
        """
        if before is None:
            self._store.journal.put(self.intent_key, journal.encode(intent))
        elif (
            self._store.compare_and_set(
                self.intent_key, journal.encode(before), journal.encode(intent), in_journal=True
            )
            is not Swap.DONE
        ):
            self._taken_for_dead = True
            raise StaleFile(_TAKEN_FOR_DEAD)
        self._intent, self._is_journalled = intent, True


def overlay(content: bytearray, start: int, data: Iterable[tuple[int, bytes]]) -> None:
    """Write data, each part at its offset in a file, over a section that begins at `start`."""
    for offset, part in data:
        first, last = max(offset, start), min(offset + len(part), start + len(content))
        if first < last:
            content[first - start : last - start] = part[first - offset : last - offset]
