"""Checks a file system: every name has an entry, every file has its blocks, and nothing unused remains."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.errors import CorruptRecord
from ignite_tf_magic.igfs import journal, layout
from ignite_tf_magic.igfs.journal import Garbage, Intent, JournalRecord, Lease
from ignite_tf_magic.igfs.layout import DirectoryNode, Extent, FileNode, entry_key
from ignite_tf_magic.igfs.paths import Path, check_listed, render
from ignite_tf_magic.igfs.tree import PAGE_NAMES
from ignite_tf_magic.igfs.volume import Volume

_KEYS_PER_REQUEST = 512
_BLOCKS_PER_PAGE = 8
_SWEEP_S = 15.0
_SWEPT = 10_000

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The result of a check.

    Attributes:
        num_bytes: Content of all files.
        num_blocks: Blocks that files use.
        num_waiting: Records of the journal: files being written, and content that readers may still need.
        problems: A sentence for each problem. Each was found by two checks in a row, which excludes changes in
            progress.
        repaired: A sentence for each repair.
    """

    num_files: int = 0
    num_directories: int = 0
    num_bytes: int = 0
    num_blocks: int = 0
    num_waiting: int = 0
    problems: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether there are no problems, or all of them were repaired."""
        return not self.problems


def fsck(volume: Volume, *, repair: bool = False, report: Report = lambda _: None) -> FsckReport:
    """Check a file system while it is in use; blocks until done.

    It reads the whole metadata, but reads blocks only if there are more of them than files use.

    Args:
        volume: The file system.
        repair: Remove what is unreachable, and names that lead nowhere. Lost content stays lost.
        report: Receives progress, one line at a time.
    """
    with volume.in_use():
        return _checked(volume, repair, report) if volume.store.exists() else FsckReport()


def _checked(volume: Volume, repair: bool, report: Report) -> FsckReport:
    if repair:
        _sweep(volume, report)
    first = _Inspection(volume, report).run()
    if not first.problems:
        return first.summary()
    report("checking a second time what seems wrong")
    second = _Inspection(volume, report).run()
    for problem in second.problems.keys() - first.problems.keys():
        del second.problems[problem]
    if not repair or not second.problems:
        return second.summary()
    repaired = second.repair()
    _sweep(volume, report)
    return replace(_Inspection(volume, report).run().summary(), repaired=repaired)


def _sweep(volume: Volume, report: Report) -> None:
    report("removing what writers left behind and what nobody reads any more")
    deadline = time.monotonic() + _SWEEP_S
    while volume.sweep(_SWEPT) and time.monotonic() < deadline:
        time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class _Problem:
    """A problem, and its repair; None if there is none."""

    text: str
    repair: Callable[[], object] | None = None


class _Ranges:
    """A set of blocks, as index ranges by writer."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def add(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            last = extent.first + extent.num_blocks
            self._ranges.setdefault(extent.writer, []).append((extent.first, last))

    def has(self, key: uuid.UUID) -> bool:
        writer, index = layout.writer_of(key)
        return any(first <= index < last for first, last in self._ranges.get(writer, ()))

    def all_keys(self) -> Iterator[uuid.UUID]:
        for writer, ranges in self._ranges.items():
            indices = {index for first, last in ranges for index in range(first, last)}
            yield from (layout.block_key(writer, index) for index in sorted(indices))

    def num_blocks(self) -> int:
        return sum(1 for _ in self.all_keys())


class _Inspection:
    """One check of everything."""

    def __init__(self, volume: Volume, report: Report) -> None:
        self.problems: dict[str, _Problem] = {}
        self._volume = volume
        self._store = volume.store
        self._report = report
        self._num_files = self._num_directories = self._num_bytes = self._num_waiting = 0
        self._rows: set[str] = set()
        self._walked: set[int] = set()
        self._in_files = _Ranges()
        self._in_journal = _Ranges()

    def run(self) -> _Inspection:
        """Run the check; blocks until done."""
        records = self._volume.collector.records()
        self._num_waiting = sum(not isinstance(record, Lease) for record in records.values())
        self._report("reading directories")
        self._walk(layout.ROOT_ID, ())
        for record in records.values():
            for directory in record.directories if isinstance(record, Garbage) else ():
                self._walk(directory, ("(removed)",), is_removed=True)
        self._find_unreachable()
        self._note_journal(records)
        self._note_journal(self._volume.collector.records())
        self._find_orphans()
        return self

    def summary(self) -> FsckReport:
        """Return the results."""
        return FsckReport(
            self._num_files,
            self._num_directories,
            self._num_bytes,
            self._in_files.num_blocks(),
            self._num_waiting,
            tuple(problem.text for problem in self.problems.values()),
        )

    def repair(self) -> tuple[str, ...]:
        """Repair what can be repaired; return a sentence for each repair."""
        repairable = [problem for problem in self.problems.values() if problem.repair]
        for problem in repairable:
            if problem.repair:
                problem.repair()
        return tuple(f"removed: {problem.text}" for problem in repairable)

    def _found(self, text: str, repair: Callable[[], object] | None = None) -> None:
        self.problems[text] = _Problem(text, repair)

    def _walk(self, directory: int, path: Path, *, is_removed: bool = False) -> None:
        waiting = [(directory, path)]
        while waiting:
            directory, path = waiting.pop()
            self._walked.add(directory)
            self._rows.update(self._volume.tree.name_rows(directory))
            all_names = self._volume.tree.names_in(directory)
            while page := list(islice(all_names, PAGE_NAMES)):
                rows = self._store.read(entry_key(directory, name) for name in page)
                for name in page:
                    if is_removed and entry_key(directory, name) not in rows:
                        continue  # a removal deletes entries before names: an interrupted sweep continues later
                    node = self._node(directory, (*path, name), rows)
                    if isinstance(node, FileNode):
                        self._note_file(render((*path, name)), node, is_removed=is_removed)
                    elif node is not None and node.id in self._walked:
                        self._found(f"{render((*path, name))}: a second name of a directory")
                    elif node is not None:
                        self._num_directories += not is_removed
                        waiting.append((node.id, (*path, name)))

    def _node(self, directory: int, path: Path, rows: dict[str, bytes]) -> DirectoryNode | FileNode | None:
        """Check one entry; return its node if it can be read."""
        key, where = entry_key(directory, path[-1]), render(path)
        self._rows.add(key)
        try:
            check_listed(path[-1], path[:-1])
        except CorruptRecord as error:
            self._found(str(error), partial(self._remove_entry, directory, path[-1]))
            return None
        if key not in rows:
            self._found(f"{where}: a name without an entry", partial(self._remove_name, directory, path[-1]))
            return None
        try:
            return layout.decode(rows[key])
        except CorruptRecord as error:
            self._found(f"{where}: {error.strerror}")
            return None

    def _remove_entry(self, directory: int, name: str) -> None:
        """Remove a name and its row. The next check finds what they led to, if nothing else leads there."""
        self._remove_name(directory, name)
        self._store.meta.remove(entry_key(directory, name))

    def _remove_name(self, directory: int, name: str) -> None:
        self._store.transact(lambda changes: self._volume.tree.remove_name(changes, directory, name))

    def _note_file(self, where: str, node: FileNode, *, is_removed: bool) -> None:
        if (
            is_removed
        ):  # a sweep frees the blocks by a garbage record of their own, perhaps before it removes the entry
            self._in_journal.add(node.extents)
        else:
            self._check_file(where, node)

    def _check_file(self, where: str, node: FileNode) -> None:
        self._num_files += 1
        self._num_bytes += node.size
        self._in_files.add(node.extents)
        keys = [key for extent in node.extents for key in extent.block_keys()]
        lost = 0
        for first in range(0, len(keys), _KEYS_PER_REQUEST):
            some = keys[first : first + _KEYS_PER_REQUEST]
            if not self._store.blocks.contains_all(some):
                lost += sum(not self._store.blocks.contains(key) for key in some)
        if lost:
            self._found(
                f"{where}: {lost} of its {len(keys)} blocks are lost; write the file again or remove it"
            )

    def _find_unreachable(self) -> None:
        self._report("reading all metadata")
        for key, _ in all_rows(self._store.meta):
            if key not in self._rows:
                self._found(f"row {key!r} that no directory leads to", partial(self._store.meta.remove, key))

    def _note_journal(self, records: Mapping[str, JournalRecord]) -> None:
        for key, record in records.items():
            if isinstance(record, Garbage):
                self._in_journal.add(record.extents)
            elif isinstance(record, Intent):
                self._in_journal.add(record.extents(journal.number_of(key)))

    def _find_orphans(self) -> None:
        """Look for blocks that nothing names, if counting shows any.

        Counting comes first, because keys of blocks can only be read together with their content.
        """
        blocks = self._store.blocks
        waiting = sum(blocks.contains(k) for k in self._in_journal.all_keys() if not self._in_files.has(k))
        surplus = blocks.size() - self._in_files.num_blocks() - waiting
        if surplus <= 0:
            return
        self._report(f"looking for {surplus:,} blocks that no file uses; this reads all blocks")
        for key, _ in all_rows(blocks, _BLOCKS_PER_PAGE):
            if not self._in_files.has(key) and not self._in_journal.has(key):
                self._found(f"block {key} that no file uses", partial(blocks.remove, key))
