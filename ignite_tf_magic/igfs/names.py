"""The names in a directory: a tree of rows, so that a million of them can be listed and changed. Pure.

A small directory is one row, a leaf. A leaf that grows too large becomes a branch with up to 64 children, chosen by six
bits of the name's hash. A branch records which children have names, so its row alone shows whether a directory is
empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ignite_tf_magic.errors import CorruptRecord
from ignite_tf_magic.igfs.layout import ID_BYTES

MAX_LEAF_NAMES = 512
MAX_LEAF_BYTES = 32 * 1024
FANOUT_BITS = 6
MAX_DEPTH = 64 // FANOUT_BITS
_SEPARATOR = "\0"


@dataclass(frozen=True, slots=True)
class NameLeaf:
    """Some names, sorted."""

    names: tuple[str, ...] = ()

    @property
    def is_too_large(self) -> bool:
        """Whether it must be split."""
        return len(self.names) > MAX_LEAF_NAMES or (
            len(self.names) > 1 and sum(map(len, self.names)) > MAX_LEAF_BYTES
        )


@dataclass(frozen=True, slots=True)
class Branch:
    """Which of 64 children have names: bit n represents child n."""

    children: int

    def digits(self) -> list[int]:
        """Return the children that have names."""
        return [digit for digit in range(1 << FANOUT_BITS) if self.children >> digit & 1]


NamesNode = NameLeaf | Branch
# Place of a node in a directory's tree: a digit for each level, as a letter; the root is "".
Place = str


def row_key(directory: int, place: Place) -> str:
    """Return the key of a node's row."""
    return f"n/{directory:0{2 * ID_BYTES}x}/{place}"


def digit_of(name: str, depth: int) -> int:
    """Return the child that contains a name at a depth."""
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return number >> (depth * FANOUT_BITS) & ((1 << FANOUT_BITS) - 1)


def child(place: Place, digit: int) -> Place:
    """Return the place of a child."""
    return place + chr(ord("0") + digit)


def route(name: str, depth: int) -> list[Place]:
    """Return the places that lead to a name, from the root down to a depth."""
    places = [""]
    for level in range(depth):
        places.append(child(places[-1], digit_of(name, level)))
    return places


def encode(node: NamesNode) -> bytes:
    """Encode a node as a row's value."""
    if isinstance(node, Branch):
        return b"B" + node.children.to_bytes(8, "little")
    return b"L" + _SEPARATOR.join(node.names).encode()


def decode(record: bytes) -> NamesNode:
    """Decode a row's value.

    Raises:
        CorruptRecord: It is not such a record.
    """
    if record[:1] == b"B" and len(record) == 9:
        return Branch(int.from_bytes(record[1:], "little"))
    if record[:1] == b"L":
        try:
            return NameLeaf(tuple(record[1:].decode().split(_SEPARATOR)))
        except UnicodeDecodeError:
            raise CorruptRecord(
                f"a directory's record of {len(record)} bytes is damaged: it is not text"
            ) from None
    raise CorruptRecord(f"a directory's record of {len(record)} bytes is damaged")


def leads_to(node: NamesNode | None, place: Place) -> bool:
    """Return whether a node is a branch with a child at a place."""
    return isinstance(node, Branch) and bool(node.children >> (ord(place[-1]) - ord("0")) & 1)


Changes = dict[Place, NamesNode | None]


def add(nodes: Mapping[Place, NamesNode], name: str) -> Changes:
    """Add a name, given the existing nodes on its way from the root.

    Returns:
        The nodes to write; empty if the name is there already.
    """
    place = _end(nodes, name)
    leaf = nodes.get(place)
    names = leaf.names if isinstance(leaf, NameLeaf) else ()
    if name in names:
        return {}
    grown = NameLeaf(tuple(sorted((*names, name))))
    changes: Changes = dict(_divided(place, grown)) if grown.is_too_large else {place: grown}
    if place:
        parent = _branch(nodes, place[:-1])
        digit = ord(place[-1]) - ord("0")
        if not parent.children >> digit & 1:
            changes[place[:-1]] = Branch(parent.children | 1 << digit)
    return changes


def remove(nodes: Mapping[Place, NamesNode], name: str) -> Changes:
    """Remove a name, given the nodes on its way from the root.

    Returns:
        The nodes to write, None for a row to remove; empty if the name is not there.
    """
    place = _end(nodes, name)
    leaf = nodes.get(place)
    if not isinstance(leaf, NameLeaf) or name not in leaf.names:
        return {}
    left = tuple(other for other in leaf.names if other != name)
    changes: Changes = {place: NameLeaf(left) if left else None}
    while place and changes[place] is None:
        parent, digit = _branch(nodes, place[:-1]), ord(place[-1]) - ord("0")
        place = place[:-1]
        children = parent.children & ~(1 << digit)
        changes[place] = Branch(children) if children else None
    return changes


def _branch(nodes: Mapping[Place, NamesNode], place: Place) -> Branch:
    node = nodes.get(place)
    if not isinstance(node, Branch):
        raise CorruptRecord(
            "a directory's names are damaged: rows hang from no branch; see ignite-tf fs fsck"
        )
    return node


def _end(nodes: Mapping[Place, NamesNode], name: str) -> Place:
    depth, place = 0, ""
    while isinstance(nodes.get(place), Branch):
        place = child(place, digit_of(name, depth))
        depth += 1
    return place


def _divided(place: Place, leaf: NameLeaf) -> Changes:
    if len(place) >= MAX_DEPTH:
        return {place: leaf}
    groups: dict[int, list[str]] = {}
    for name in leaf.names:
        groups.setdefault(digit_of(name, len(place)), []).append(name)
    changes: Changes = {place: Branch(sum(1 << digit for digit in groups))}
    for digit, names in groups.items():
        changes[child(place, digit)] = NameLeaf(tuple(names))
    return changes
