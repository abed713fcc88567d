"""Pages of a scan in order, and the partition of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ignite_tf_magic.client.channel import Channel
from ignite_tf_magic.errors import ConnectionLost
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.walk_compiled import index_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ScannedSeries:
    """Pages in order, and the partition of each. Valid until the next series is requested."""

    partitions: Sequence[int]
    series: PageSeries

    def pages(self) -> list[ScannedPage]:
        """Return one `ScannedPage` for each page that has rows."""
        pairs = zip(self.partitions, self.series.pages(), strict=True)
        return [ScannedPage(partition, page) for partition, page in pairs if page.num_rows]


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """Rows of one partition. Valid until the next series is requested."""

    partition: int
    page: Page

    def row_starts(self) -> NDArray[np.int64]:
        """Return the offset of each row in `page.rows` and the end of the last: num_rows + 1 offsets."""
        return index(self.page)[0]


def used_meanwhile(
    channel: Channel, series: ScannedSeries, requests: bytes | memoryview = b""
) -> Iterator[ScannedSeries]:
    """Send the next requests, then yield the series, so that the node works while the caller uses the series.

    Raises:
        ConnectionLost: The node went away. Raised after the series was used, which is complete in any case.
    """
    failure = None
    try:
        channel.flush(requests)
    except ConnectionLost as error:
        failure = error
    yield series
    if failure:
        raise failure


def index(page: Page, num_values: int = 1) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the offsets of a page's rows (num_rows + 1) and the hashes of their encoded keys.

    Args:
        page: The page.
        num_values: Number of values after each key.
    """
    starts, hashes = np.empty(page.num_rows + 1, np.int64), np.empty(page.num_rows, np.uint64)
    index_rows(page.rows, page.num_rows, starts, hashes, num_values)
    return starts, hashes


def undelivered(
    page: Page, delivered: list[NDArray[np.uint64]], repeated: NDArray[np.uint64], num_values: int = 1
) -> Page:
    """Record the rows of a page as delivered and return the page without those delivered before.

    Args:
        page: The page.
        delivered: Hashes of the keys of delivered rows; those of this page are added.
        repeated: Hashes of the keys of rows that may come again.
        num_values: Number of values after each key.
    """
    starts, hashes = index(page, num_values)
    if len(repeated):
        kept = np.flatnonzero(~np.isin(hashes, repeated))
        hashes = hashes[kept]
        pieces = [page.rows[int(starts[row]) : int(starts[row + 1])] for row in kept]
        page = page._replace(num_rows=len(pieces), rows=memoryview(b"".join(pieces)))
    delivered.append(hashes)
    return page
