"""Pages of a scan in order, and the partition of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.walk_compiled import index_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ScannedSeries:
    """Pages in order, and the partition of each. Valid until the next series is asked for."""

    partitions: Sequence[int]
    series: PageSeries

    def pages(self) -> list[ScannedPage]:
        """Return the pages one by one, those with rows."""
        pairs = zip(self.partitions, self.series.pages(), strict=True)
        return [ScannedPage(partition, page) for partition, page in pairs if page.num_rows]


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """Rows of one partition. Valid until the next series is asked for."""

    partition: int
    page: Page

    def row_starts(self) -> NDArray[np.int64]:
        """Find where each row starts: num_rows + 1 offsets into `page.rows`."""
        return index(self.page)[0]


def index(page: Page) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Find where the rows of a page start (num_rows + 1 offsets), and hash their encoded keys."""
    starts, hashes = np.empty(page.num_rows + 1, np.int64), np.empty(page.num_rows, np.uint64)
    index_rows(page.rows, page.num_rows, starts, hashes)
    return starts, hashes
