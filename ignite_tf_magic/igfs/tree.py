"""Directories: finds entries, and creates, renames and removes them, each as one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from ignite_tf_magic.errors import (
    DirectoryNotEmpty,
    InvalidPath,
    OutcomeUnknown,
    PathExists,
    PathIsDirectory,
    PathNotDirectory,
)
from ignite_tf_magic.igfs import journal, layout, listing, names
from ignite_tf_magic.igfs.found import ROOT, ResolvedPath, is_same, must_not_lie_in
from ignite_tf_magic.igfs.journal import Garbage
from ignite_tf_magic.igfs.layout import ROOT_ID, DirectoryNode, Extent, FileNode, Node, entry_key
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.store import Changes, ProcessLock, Store

PAGE_NAMES = 1000
_MAX_KNOWN = 10_000

Read = Callable[[Iterable[str]], dict[str, bytes]]


class Tree:
    """The directories of one file system. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = ProcessLock()
        self._ids: dict[Path, int] = {}
        self._depths: dict[int, int] = {}

    def find(self, path: Path, read: Read | None = None) -> ResolvedPath:
        """Look up a path: by one request if its directories are cached, else by one for each directory.

        That same request also verifies the cached directories.

        Args:
            path: The path to look up.
            read: Reads rows, in a transaction; default: outside of one.
        """
        read = read or self._store.read
        nodes: list[Node] = [ROOT]
        record = b""
        while len(nodes) <= len(path):
            here = nodes[-1]
            if isinstance(here, FileNode):
                break
            expected = self._expected(path, len(nodes) - 1, here.id)
            keys = [entry_key(parent, path[len(nodes) - 1 + n]) for n, parent in enumerate(expected)]
            rows = read(keys)
            for parent, key in zip(expected, keys, strict=True):
                here = nodes[-1]
                if isinstance(here, FileNode) or here.id != parent:
                    break
                if key not in rows:
                    self._forget(path[: len(nodes)])
                    return ResolvedPath(path, tuple(nodes), record)
                record = rows[key]
                nodes.append(layout.decode(record))
                self._learn(path[: len(nodes) - 1], nodes[-1])
        return ResolvedPath(path, tuple(nodes), record)

    def find_to_change(self, changes: Changes, path: Path) -> ResolvedPath:
        """Look up a path in a transaction that will create, replace or remove its last name."""
        self._expect(changes, path)
        return self.find(path, changes.read)

    def _expect(self, changes: Changes, *paths: Path) -> None:
        """Prefetch, in one request, the rows that changing these paths will probably need."""
        keys: list[str] = []
        for path in paths:
            ids = self._expected(path, 0, ROOT_ID)
            keys += [entry_key(parent, name) for parent, name in zip(ids, path, strict=False)]
            if len(ids) == len(path):
                places = names.route(path[-1], self._depths.get(ids[-1], 0))
                keys += [names.row_key(ids[-1], place) for place in places]
        changes.read(keys)

    def _expected(self, path: Path, start: int, first: int) -> list[int]:
        """Guess the ids of the directories along a path, starting from a known one."""
        ids = [first]
        for length in range(start + 1, len(path)):
            known = self._ids.get(path[:length])
            if known is None:
                break
            ids.append(known)
        return ids

    def _learn(self, path: Path, node: Node) -> None:
        with self._lock:
            if isinstance(node, FileNode):
                self._ids.pop(path, None)
                return
            if len(self._ids) >= _MAX_KNOWN:
                self._ids.clear()
            self._ids[path] = node.id

    def _forget(self, path: Path) -> None:
        with self._lock:
            self._ids.pop(path, None)

    def make_directory(self, path: Path, *, exist_ok: bool = False) -> None:
        """Create a directory.

        Raises:
            PathExists: Something is there already, unless it is a directory and `exist_ok`.
            PathNotFound: Its parent does not exist.
        """
        if not path:
            if exist_ok:
                return
            raise PathExists("the root always exists", "/")
        tried: set[int] = set()

        def act(changes: Changes) -> DirectoryNode:
            resolved = self.find_to_change(changes, path)
            parent, there = resolved.parent(), resolved.node
            if isinstance(there, DirectoryNode) and (exist_ok or there.id in tried):
                return there
            if there is not None:
                raise PathExists("this name exists already", render(path))
            # A new id for each try: the directory of an unanswered attempt may exist, perhaps renamed by now.
            made = DirectoryNode(layout.new_id(), time.time_ns())
            tried.add(made.id)
            changes.write({entry_key(parent.id, path[-1]): layout.encode(made)})
            self.add_name(changes, parent.id, path[-1])
            return made

        self._learn(path, self._store.transact(act))

    def make_directories(self, path: Path, *, exist_ok: bool = True) -> None:
        """Create a directory and the missing directories above it.

        Raises:
            PathExists: It exists, and `exist_ok` is False.
            PathNotDirectory: A file is in the way.
        """
        resolved = self.find(path)
        if resolved.node is not None:
            if exist_ok:
                resolved.directory()
                return
            raise PathExists("this name exists already", render(path))
        for length in range(len(resolved.nodes), len(path) + 1):
            self.make_directory(path[:length], exist_ok=exist_ok or length < len(path))

    def make_file(self, path: Path) -> None:
        """Create an empty file, or replace an existing file by an empty one, in one transaction.

        Raises:
            PathIsDirectory: A directory is there.
            PathNotFound: Its directory does not exist.
        """
        if not path:
            raise PathIsDirectory("this is a directory", "/")
        now_ns = time.time_ns()
        made = FileNode(layout.new_id(), now_ns, now_ns)

        def act(changes: Changes) -> None:
            resolved = self.find_to_change(changes, path)
            if not (changes.uncertain and is_same(resolved.node, made)):
                self.put_file(changes, resolved, made)

        self._store.transact(act)

    def put_file(self, changes: Changes, resolved: ResolvedPath, node: FileNode) -> None:
        """Write the entry of a looked-up file in a transaction; the blocks it replaces become garbage.

        Raises:
            PathIsDirectory: A directory is there.
            PathNotFound: Its directory does not exist.
        """
        if isinstance(resolved.node, DirectoryNode):
            raise PathIsDirectory("a directory is there", render(resolved.path))
        parent = resolved.parent()
        changes.write({entry_key(parent.id, resolved.path[-1]): layout.encode(node)})
        if resolved.node is None:
            self.add_name(changes, parent.id, resolved.path[-1])
        elif resolved.node.version != node.version:
            self._free(changes, layout.without(resolved.node.extents, node.extents))

    def remove_file(self, path: Path) -> None:
        """Remove a file; its open readers can continue.

        Raises:
            PathNotFound: There is none.
            PathIsDirectory: It is a directory.
        """
        meant: list[Node] = []

        def act(changes: Changes) -> None:
            resolved = self.find_to_change(changes, path)
            if changes.uncertain and not is_same(resolved.node, *meant):
                return  # an earlier attempt removed it; the current entry is another client's
            node = resolved.must()
            meant[:] = [node]
            if isinstance(node, DirectoryNode):
                raise PathIsDirectory("this is a directory", render(path))
            self._remove_entry(changes, resolved)
            self._free(changes, node.extents)

        self._store.transact(act)

    def remove_directory(self, path: Path, *, with_contents: bool = False) -> None:
        """Remove a directory. With its contents it vanishes at once, and its rows are freed afterwards.

        Raises:
            PathNotFound: There is none.
            PathNotDirectory: It is a file.
            DirectoryNotEmpty: It has contents, and `with_contents` is False.
            InvalidPath: It is the root.
        """
        if not path:
            raise InvalidPath("the root cannot be removed", "/")

        meant: list[Node] = []

        def act(changes: Changes) -> None:
            resolved = self.find_to_change(changes, path)
            if changes.uncertain and not is_same(resolved.node, *meant):
                return  # an earlier attempt removed it; the current entry is another client's
            node = resolved.directory()
            meant[:] = [node]
            if with_contents:
                changes.write_journal(journal.garbage_row(Garbage(directories=(node.id,))))
            else:
                self._must_be_empty(changes, node, path)
            self._remove_entry(changes, resolved)

        self._store.transact(act)
        self._forget(path)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file, or a directory with all its contents, to another path, replacing a file there.

        Raises:
            PathNotFound: The source, or the target's directory, does not exist.
            PathIsDirectory: A file would replace a directory.
            PathNotDirectory: A directory would replace a file.
            DirectoryNotEmpty: A directory would replace one that has contents.
            InvalidPath: A directory would move into itself, or the root would move.
        """
        if not source or not target:
            raise InvalidPath("the root cannot be moved or replaced", "/")
        if source == target[: len(source)] and source != target:
            raise InvalidPath(f"a directory cannot be moved into itself ({render(target)})", render(source))
        meant: list[Node] = []

        def act(changes: Changes) -> None:
            self._expect(changes, source, target)
            old, new = self.find(source, changes.read), self.find(target, changes.read)
            if changes.uncertain and not is_same(old.node, *meant):
                if is_same(new.node, *meant):
                    return  # an earlier attempt moved it; any entry now at the source is another client's
                raise OutcomeUnknown(
                    "a move was not answered, and others have changed both paths since: whether it succeeded is "
                    f"unknown. Check {render(target)!r} before moving it again",
                    render(source),
                )
            node = old.must()
            meant[:] = [node]
            new.parent()
            if source == target:
                return
            must_not_lie_in(node, new)
            self._displace(changes, node, new)
            self._move(changes, old, new)

        self._store.transact(act)
        self._forget(source)
        self._forget(target)

    def _displace(self, changes: Changes, node: Node, target: ResolvedPath) -> None:
        """Free the entry that will be replaced, after checking that it may be."""
        there = target.node
        if there is None:
            return
        path = render(target.path)
        if isinstance(there, FileNode):
            if isinstance(node, DirectoryNode):
                raise PathNotDirectory("a directory cannot replace this file", path)
            self._free(changes, there.extents)
        elif isinstance(node, FileNode):
            raise PathIsDirectory("a file cannot replace this directory", path)
        else:
            self._must_be_empty(changes, there, target.path)

    def _move(self, changes: Changes, old: ResolvedPath, new: ResolvedPath) -> None:
        """Move an entry, and its name unless the target has that name already."""
        source, target = old.parent().id, new.parent().id
        changes.write({entry_key(source, old.path[-1]): None, entry_key(target, new.path[-1]): old.record})
        if new.node is None and source == target:
            self._rename_name(changes, source, old.path[-1], new.path[-1])
            return
        self.remove_name(changes, source, old.path[-1])
        if new.node is None:
            self.add_name(changes, target, new.path[-1])

    def entries(self, directory: int) -> Iterator[list[tuple[str, Node]]]:
        """Yield a directory's entries in lists of up to 1,000, in no order; concurrent changes may be missed."""
        all_names = self.names_in(directory)
        while page := list(islice(all_names, PAGE_NAMES)):
            rows = self._store.read(entry_key(directory, name) for name in page)
            named = ((name, rows.get(entry_key(directory, name))) for name in page)
            yield [(name, layout.decode(record)) for name, record in named if record is not None]

    def name_rows(self, directory: int) -> Iterator[str]:
        """Return the keys of the rows that hold a directory's names, children before their parents."""
        return listing.name_rows(self._store, directory)

    def names_in(self, directory: int) -> Iterator[str]:
        """Return the names in a directory, in no order."""
        return listing.names_in(self._store, directory)

    def add_name(self, changes: Changes, directory: int, name: str) -> None:
        """Add a name to a directory's names."""
        nodes = self._way(changes, directory, name)
        self._write_names(changes, directory, names.add(nodes, name))

    def _rename_name(self, changes: Changes, directory: int, old: str, new: str) -> None:
        """Replace a name by another of the same directory; both may be in one row."""
        nodes = {**self._way(changes, directory, old), **self._way(changes, directory, new)}
        written = names.remove(nodes, old)
        left = {place: node for place, node in {**nodes, **written}.items() if node is not None}
        self._write_names(changes, directory, {**written, **names.add(left, new)})

    def _remove_entry(self, changes: Changes, resolved: ResolvedPath) -> None:
        parent, name = resolved.parent(), resolved.path[-1]
        changes.write({entry_key(parent.id, name): None})
        self.remove_name(changes, parent.id, name)

    def remove_name(self, changes: Changes, directory: int, name: str) -> None:
        """Remove a name from a directory's names."""
        nodes = self._way(changes, directory, name)
        self._write_names(changes, directory, names.remove(nodes, name))

    def _write_names(self, changes: Changes, directory: int, nodes: names.Changes) -> None:
        changes.write(
            {
                names.row_key(directory, place): None if node is None else names.encode(node)
                for place, node in nodes.items()
            }
        )

    def _way(self, changes: Changes, directory: int, name: str) -> dict[str, names.NamesNode]:
        """Read the nodes from the root to a name, by one request if the depth is cached."""
        nodes: dict[str, names.NamesNode] = {}
        depth, start = self._depths.get(directory, 0), 0
        while True:
            places = names.route(name, depth)[start:]
            rows = changes.read(names.row_key(directory, place) for place in places)
            for place in places:
                row = rows.get(names.row_key(directory, place))
                if row is None:
                    break
                nodes[place] = names.decode(row)
            last = places[-1]
            if not isinstance(nodes.get(last), names.Branch):
                if len(self._depths) >= _MAX_KNOWN:
                    self._depths.clear()
                self._depths[directory] = len(max(nodes, key=len, default=""))
                return nodes
            depth, start = depth + 1, depth + 1

    def _must_be_empty(self, changes: Changes, node: DirectoryNode, path: Path) -> None:
        key = names.row_key(node.id, "")
        if key in changes.read([key]):
            raise DirectoryNotEmpty("the directory is not empty", render(path))

    def _free(self, changes: Changes, extents: tuple[Extent, ...]) -> None:
        if extents:
            changes.write_journal(journal.garbage_row(Garbage(extents)))
