"""Inspects a cache of packed rows before it is read: the layouts of its entries and of their rows."""

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
    """Raise if options are set that packed rows do not support.

    Raises:
        ConfigError: Such an option is set.
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
            f"the rows of cache {options.cache!r} are packed, so {asked[0]}= cannot be used: leave it out, or read "
            "the cache that they were packed from"
        )


def find_packed(
    fields: Sequence[str] | None,
    cache: Cache,
    partitions: Sequence[int],
    baseline: Baseline,
    sizes: PageSizes,
) -> tuple[RowLayout | None, int, RowLayout | None]:
    """Sample the first entry.

    Args:
        fields: The fields of the rows to read; None for all.
        cache: The cache.
        partitions: Where to look first.
        baseline: The owners of its partitions.
        sizes: Learns the sizes of the entries.

    Returns:
        The layout of the rows, their mean size, and the layout of the entries; the layouts are None if there is no
        entry.

    Raises:
        SchemaError: The entry cannot be read, or a field does not exist.
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
