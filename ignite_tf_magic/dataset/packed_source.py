"""A cache of packed rows as it is before it is read: what its entries and their rows look like."""

from __future__ import annotations

from collections.abc import Sequence

from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.packed_entries import PACKED_ROWS
from ignite_tf_magic.client.packed_rows import entries_of, entry_layout, read_layout, with_fields
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.dataset.options import ReadOptions
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.protocol.columns import ColumnChunk, PageDecoder
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.page_series import PageSeries


def check_packed(options: ReadOptions) -> None:
    """Refuse what is said of rows when they are packed, or cannot be said of those that are.

    Raises:
        ConfigError: It was asked for.
    """
    given = {
        "where": options.where is not None,
        "fill": bool(options.fill),
        "nulls": options.nulls is not None,
        "variable": bool(options.variable),
        "as_text": bool(options.as_text),
        "follow": options.is_growing,
    }
    if asked := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(
            f"the rows of cache {options.cache!r} are packed, {asked[0]}= cannot be had of them: leave it out, or read "
            "the cache that they were packed from"
        )


def find_packed(
    fields: Sequence[str] | None,
    cache: Cache,
    partitions: Sequence[int],
    baseline: Baseline,
    sizes: PageSizes,
) -> tuple[RowLayout | None, int, RowLayout | None]:
    """Look at the first entry that there is.

    Args:
        fields: Of the rows, that are wanted; None are all.
        cache: It.
        partitions: Where to look first.
        baseline: Who has its partitions.
        sizes: Learns of the entries.

    Returns:
        What its rows look like, their mean size, and what entries look like; None for these where there is none.

    Raises:
        SchemaError: The entry cannot be read, or there is no such field.
        ConfigError: This Python has no pyarrow.
    """
    finder = LayoutFinder(cache.client.types.find, variable=[PACKED_ROWS])
    scan = cache.scan(list(dict.fromkeys((*partitions, *sorted(baseline.owners)))), sizes, baseline)
    try:
        for scanned in scan.pages():
            if not scanned.page.num_rows:
                continue
            finder.add(scanned.page.rows, scanned.page.num_rows)
            entries = entry_layout(finder.layout())
            first = ColumnChunk(entries, 1)
            PageDecoder(entries).decode(PageSeries([scanned.page]), first)
            ((_, num_rows, packed),) = entries_of(first)
            rows = read_layout(packed, f"an entry of cache {cache.name!r}")
            if fields is not None:
                rows = with_fields(rows, fields)
            return rows, len(packed) // max(num_rows, 1), entries
    finally:
        scan.close()
    return None, 0, None
