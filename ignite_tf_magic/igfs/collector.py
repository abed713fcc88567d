"""Removes blocks and directories that nobody can reach any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.igfs import journal
from ignite_tf_magic.igfs.journal import Garbage, Intent, JournalRecord, Lease
from ignite_tf_magic.igfs.layout import ROOT_ID, DirectoryNode, Extent, FileNode, entry_key
from ignite_tf_magic.igfs.store import Changes, ProcessLock, Store
from ignite_tf_magic.igfs.tree import Tree

T = TypeVar("T")
_KEYS_PER_REQUEST = 256
_RENEWALS_TO_WAIT = 2


class Collector:
    """Removes garbage. Thread-safe; several clients may do it at once.

    Garbage blocks are removed once no client can be reading them. That is when every client that existed when the
    garbage was first seen has renewed its lease twice since, or is gone, and no lease names their writer. Leases do not
    keep superseded garbage.
    """

    def __init__(self, store: Store, tree: Tree) -> None:
        self._store = store
        self._tree = tree
        self._lock = ProcessLock()
        self._first_seen: dict[str, dict[int, int]] = {}

    def records(self) -> dict[str, JournalRecord]:
        """Read the journal."""
        return {key: journal.decode(key, value) for key, value in all_rows(self._store.journal)}

    def sweep(self, max_records: int) -> int:
        """Remove current garbage, up to a number of records, and return the number of records left.

        A second sweep by the same collector, some renewals later, removes what this one saw first.
        """
        if not self._store.exists():
            return 0
        with self._lock:
            records = self.records()
            # Leases are read after the records that they protect, so that a client that came during the first reading
            # is seen.
            later = self.records() if not all(isinstance(r, Lease) for r in records.values()) else records
            leases = {journal.number_of(k): r for k, r in later.items() if isinstance(r, Lease)}
            counters = {client: lease.counter for client, lease in leases.items()}
            intents = {k: r for k, r in records.items() if isinstance(r, Intent) and r.client not in leases}
            garbage = {k: r for k, r in records.items() if isinstance(r, Garbage)}
            self._first_seen = {key: self._first_seen.get(key, counters) for key in garbage}
            read = frozenset(writer for lease in leases.values() for writer in lease.writers)
            ripe = [k for k, r in garbage.items() if self._is_ripe(k, r, counters, read)]
        for key in list(intents)[:max_records]:
            self.abandon(key)
        for key in ripe[:max_records]:
            self.remove(key, garbage[key])
        num_trees = sum(
            bool(garbage[key].directories) for key in ripe[:max_records]
        )  # their files have become garbage now
        return len(garbage) - len(ripe[:max_records]) + len(intents) + num_trees

    def _is_ripe(self, key: str, garbage: Garbage, counters: dict[int, int], read: frozenset[int]) -> bool:
        for client, counter in self._first_seen[key].items():
            if client in counters and counters[client] < counter + _RENEWALS_TO_WAIT:
                return False
        return garbage.superseded or not any(extent.writer in read for extent in garbage.extents)

    def abandon(self, intent_key: str) -> None:
        """Turn the intent of a dead writer into garbage.

        If the writer is alive after all, it can no longer commit.
        """

        def act(changes: Changes) -> None:
            value = changes.read_journal(intent_key)
            intent = journal.decode(intent_key, value) if value is not None else None
            if not isinstance(intent, Intent):
                return
            extents = intent.extents(journal.number_of(intent_key))
            changes.write_journal({intent_key: None})
            if extents:
                changes.write_journal(journal.garbage_row(Garbage(extents)))

        self._store.transact(act)

    def remove(self, garbage_key: str, garbage: Garbage) -> None:
        """Remove what a record names, and then the record."""
        for directory in garbage.directories:
            for below in self._deepest_first(directory):
                self._purge(below)
        self.remove_blocks(garbage.extents)
        self._store.journal.remove(garbage_key)

    def remove_blocks(self, extents: Iterable[Extent]) -> None:
        """Remove blocks, whether they exist or not."""
        blocks = self._store.blocks
        for extent in extents:
            for keys in _portions(extent.block_keys()):
                blocks.remove_all(keys)

    def _deepest_first(self, directory: int) -> Iterator[int]:
        """Return a directory and those below it, deepest first.

        An interrupted removal can then be resumed.
        """
        found = {directory: None}
        waiting = [directory]
        for above in waiting:
            for page in self._tree.entries(above):
                below = [node.id for _, node in page if isinstance(node, DirectoryNode)]
                # An entry by another program may lead back: avoid an endless loop, and never follow it to the root.
                new = [each for each in dict.fromkeys(below) if each not in found and each != ROOT_ID]
                found |= dict.fromkeys(new)
                waiting += new
        return reversed(found)

    def _purge(self, directory: int) -> None:
        """Remove the contents of a removed directory; their blocks become garbage records of their own."""
        for page in self._tree.entries(directory):
            self._free_files([node for _, node in page if isinstance(node, FileNode)])
            self._store.meta.remove_all(sorted(entry_key(directory, name) for name, _ in page))
        for keys in _portions(list(self._tree.name_rows(directory))):
            self._store.meta.remove_all(sorted(keys))

    def _free_files(self, files: Sequence[FileNode]) -> None:
        rows: dict[str, bytes] = {}
        for node in files:
            if node.extents:
                rows |= journal.garbage_row(Garbage(node.extents))
        if rows:
            self._store.journal.put_all(rows)


def _portions(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(keys), _KEYS_PER_REQUEST):
        yield keys[first : first + _KEYS_PER_REQUEST]
