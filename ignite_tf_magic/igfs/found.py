"""Results of path lookups. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ignite_tf_magic.errors import InvalidPath, PathNotDirectory, PathNotFound
from ignite_tf_magic.igfs.layout import ROOT_ID, DirectoryNode, FileNode, Node
from ignite_tf_magic.igfs.paths import Path, render

ROOT = DirectoryNode(ROOT_ID, 0)


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The nodes along a path from the root down, as far as they exist.

    Attributes:
        nodes: The root, then the node of each name; shorter than the path if something is missing.
        record: The row of the last node, as it was read; empty for the root.
    """

    path: Path
    nodes: tuple[Node, ...]
    record: bytes = b""

    @property
    def node(self) -> Node | None:
        """The node at the end of the path, or None."""
        return self.nodes[-1] if len(self.nodes) == len(self.path) + 1 else None

    def must(self) -> Node:
        """Return the node at the end of the path.

        Raises:
            PathNotFound: Nothing is there.
            PathNotDirectory: The path leads through a file.
        """
        node = self.node
        if node is None:
            self._raise_if_through_file()
            raise PathNotFound("there is no such file or directory in igfs", render(self.path))
        return node

    def directory(self) -> DirectoryNode:
        """Return the directory at the end of the path.

        Raises:
            PathNotFound: Nothing is there.
            PathNotDirectory: A file is there, or on the way.
        """
        node = self.must()
        if isinstance(node, FileNode):
            raise PathNotDirectory("this is a file, not a directory", render(self.path))
        return node

    def parent(self) -> DirectoryNode:
        """Return the directory that contains the path's last name, or would contain it.

        Raises:
            PathNotFound: There is no such directory.
            PathNotDirectory: It is a file, or the path leads through one.
        """
        self._raise_if_through_file()
        parent = self.nodes[len(self.path) - 1] if len(self.nodes) >= len(self.path) > 0 else None
        if not isinstance(parent, DirectoryNode):
            missing = render(self.path[: len(self.nodes)])
            raise PathNotFound(
                f"there is no directory {missing!r} in igfs; create it first", render(self.path)
            )
        return parent

    def _raise_if_through_file(self) -> None:
        last = len(self.nodes) - 1
        if last < len(self.path) and isinstance(self.nodes[last], FileNode):
            file = render(self.path[:last])
            raise PathNotDirectory(f"{file!r} is a file, so nothing can be below it", render(self.path))


def is_same(there: Node | None, meant: Node) -> bool:
    """Return whether an entry is the intended one, though it may have grown since."""
    if isinstance(there, FileNode) and isinstance(meant, FileNode):
        return there.version == meant.version
    return isinstance(there, DirectoryNode) and isinstance(meant, DirectoryNode) and there.id == meant.id


def must_not_lie_in(node: Node, target: ResolvedPath) -> None:
    """Raise if a directory would be moved to a path that leads through it.

    Raises:
        InvalidPath: The target leads through the directory.
    """
    if isinstance(node, DirectoryNode) and any(
        isinstance(above, DirectoryNode) and above.id == node.id for above in target.nodes[: len(target.path)]
    ):
        raise InvalidPath("a directory cannot be moved into itself", render(target.path))
