"""Reads all rows of a small cache one by one. For training data see `cache_scan`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import FindType
from ignite_tf_magic.protocol.read_values import read_value

_ALL_PARTITIONS = -1


def all_rows(cache: Cache, page_rows: int = 1024) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of a cache through one node, each once, in no order. May miss rows that change meanwhile.

    Raises:
        CacheNotFound: The cache does not exist.
        ConnectionLost: The node went away; start again.
    """
    router, types = cache.client.router, cache.client.types
    here = router.control_node_id()
    nodes = cache.client.nodes()
    with router.open_to(next((node for node in nodes if node.node_id == here), nodes[0])) as channel:
        page = channel.call(
            messages.scan(cache.cache_id, _ALL_PARTITIONS, page_rows),
            lambda payload: messages.parse_first_page(memoryview(bytes(payload))),
        )
        cursor = page.cursor
        while True:
            yield from types.read(partial(_rows_of, page))
            if not page.has_more or cursor is None:
                return
            page = channel.call(
                messages.next_page(cursor),
                lambda payload: messages.parse_next_page(memoryview(bytes(payload))),
            )


def _rows_of(page: Page, find_type: FindType) -> list[tuple[Any, Any]]:
    reader = Reader(page.rows)
    return [(read_value(reader, find_type), read_value(reader, find_type)) for _ in range(page.num_rows)]
