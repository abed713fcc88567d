"""Records the keys of a running append, so that its rows can be removed if it dies.

The cache `ignite-tf-added` has one entry for each chunk of rows: the names of the key columns, and for each of them a
list of statement arguments. The entries are removed when the append ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from ignite_tf_magic.client.cache_facts import NOTES_PREFIX
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.errors import CacheNotFound
from ignite_tf_magic.protocol.messages import CacheConfig

CACHE = f"{NOTES_PREFIX}added"


class AddedKeys:
    """The recorded keys of an append into one cache."""

    def __init__(self, client: Client, cache: str) -> None:
        self._client, self._name = client, cache
        self._cache = Cache(client, CACHE)
        self._num_chunks: int | None = None

    def note(self, names: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        """Record the keys of rows before they are written.

        Args:
            names: The key columns.
            values: One list of arguments for each of them.
        """
        if self._num_chunks is None:
            self._client.get_or_create_cache(CacheConfig(CACHE, backups=1))
            self._num_chunks = self._count()
        self._cache.put(self._entry(self._num_chunks), [list(names), *(list(each) for each in values)])
        self._num_chunks += 1

    def chunks(self) -> Iterator[tuple[list[str], list[list[Any]]]]:
        """Yield the recorded names and values of each chunk."""
        for number in count():
            try:
                found = self._cache.get(self._entry(number))
            except CacheNotFound:
                return
            if found is None:
                return
            names, *values = found
            yield list(names), [list(each) for each in values]

    def forget(self) -> None:
        """Remove the entries, the last one first, because `chunks` looks for them from the first one."""
        num_chunks = self._count() if self._num_chunks is None else self._num_chunks
        for number in reversed(range(num_chunks)):
            self._cache.remove(self._entry(number))
        self._num_chunks = None

    def _count(self) -> int:
        """Return the number of recorded chunks; reads them all."""
        return sum(1 for _ in self.chunks())

    def _entry(self, number: int) -> str:
        return f"{self._name}/{number}"
