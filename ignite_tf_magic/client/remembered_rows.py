"""Remembers delivered rows in 16 bytes each: a hash of the key, and a hash of the whole row."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

from ignite_tf_magic.protocol.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RECENT_ROWS = 65_536
GONE = 0  # stored for a key whose row was removed


class RememberedRows:
    """The last row of each key, as hashes. The oldest are forgotten first. One thread.

    A row is known if both hashes are equal: that of its key, and that of key and value. No row has the hash `GONE`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._recent: dict[int, int] = {}
        self._runs: list[
            tuple[NDArray[np.uint64], NDArray[np.uint64]]
        ] = []  # oldest first, each sorted by key
        self.has_forgotten = False

    def __len__(self) -> int:
        """Return an upper bound for the number of keys. A key may be stored more than once."""
        return len(self._recent) + sum(len(keys) for keys, _ in self._runs)

    def take(self, keys: NDArray[np.uint64], rows: NDArray[np.uint64]) -> list[int]:
        """Remember rows in order. Return the indexes of rows that are new or changed for their key."""
        news = []
        before = self._in_runs(keys).tolist()
        for number, (key, row) in enumerate(zip(keys.tolist(), rows.tolist(), strict=True)):
            if self._recent.get(key, before[number]) != row:
                self._recent[key] = row
                if row != GONE:
                    news.append(number)
        if len(self._recent) > _RECENT_ROWS:
            self._settle()
        return news

    def _in_runs(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        found = np.zeros(len(keys), np.uint64)
        for known, rows in self._runs:  # later ones write over earlier ones
            places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            is_there = known[places] == keys
            found[is_there] = rows[places[is_there]]
        return found

    def _settle(self) -> None:
        """Sort the recent rows into a run, and merge runs until each is at least twice as long as the next."""
        keys = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        rows = np.fromiter(self._recent.values(), np.uint64, len(self._recent))
        order = np.argsort(keys)
        self._runs.append((keys[order], rows[order]))
        self._recent = {}
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(older, newer))
        while len(self) > self._most and self._runs:
            self._runs.pop(0)
            self.has_forgotten = True


def hashes_of_rows(rows: memoryview, starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash encoded rows (key and value). `starts` has the offset of each row and the end of the last."""
    places = starts.tolist()
    digests = (blake2b(rows[start:end], digest_size=8).digest() for start, end in pairwise(places))
    numbers = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    numbers[numbers == GONE] = GONE + 1
    return numbers


def _merged(
    older: tuple[NDArray[np.uint64], NDArray[np.uint64]], newer: tuple[NDArray[np.uint64], NDArray[np.uint64]]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    keys, rows = (np.concatenate([new, old]) for new, old in zip(newer, older, strict=True))
    kept, places = np.unique(keys, return_index=True)  # of equal keys the first, which is the newer
    return kept, rows[places]
