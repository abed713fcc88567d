"""Reads the names in a directory of any size while others change them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ignite_tf_magic.igfs import names
from ignite_tf_magic.igfs.store import Store

# Rows of names per request; they hold some thousand names.
_ROWS_PER_REQUEST = 16
_COMMIT_PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0)


def name_rows(store: Store, directory: int) -> Iterator[str]:
    """Return the keys of the rows that hold a directory's names, children before their parents."""
    places = [""]
    for place in places:
        node = _read_rows(store, directory, [place]).get(place)
        if isinstance(node, names.Branch):
            places += [names.child(place, digit) for digit in node.digits()]
    return (names.row_key(directory, place) for place in reversed(places))


def names_in(store: Store, directory: int) -> Iterator[str]:
    """Yield the names in a directory, in no order."""
    places = [""]
    while places:
        nodes = _read_nodes(store, directory, places[-_ROWS_PER_REQUEST:])
        del places[-_ROWS_PER_REQUEST:]
        for place, node in nodes.items():
            if isinstance(node, names.NameLeaf):
                yield from node.names
            else:
                places += [names.child(place, digit) for digit in node.digits()]


def _read_nodes(store: Store, directory: int, places: list[str]) -> dict[str, names.NamesNode]:
    """Read nodes of a directory's names; those that do not exist are left out.

    A commit makes its rows visible one after the other: a branch may be visible before its children.
    """
    found = _read_rows(store, directory, places)
    for pause_s in _COMMIT_PAUSES_S:
        missing = [place for place in places if place and place not in found]
        parents = _read_rows(store, directory, {place[:-1] for place in missing}) if missing else {}
        missing = [place for place in missing if names.leads_to(parents.get(place[:-1]), place)]
        if not missing:
            break
        time.sleep(pause_s)
        found |= _read_rows(store, directory, missing)
    return found


def _read_rows(store: Store, directory: int, places: Iterable[str]) -> dict[str, names.NamesNode]:
    keys = {names.row_key(directory, place): place for place in places}
    return {keys[key]: names.decode(row) for key, row in store.read(keys).items()}
