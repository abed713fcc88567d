"""Plans global batches: how many rows each worker brings to each step. Pure.

A batch of B rows is one batch of the whole run. Every worker brings some of its own rows to each step, in proportion to
how many it has, so all workers run out in the same step. With R rows in all, an epoch has R / B steps, as in one
process, and each row occurs once in it, however unevenly the rows are spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ignite_tf_magic.dataset.options import AssignedShard
from ignite_tf_magic.errors import ConfigError


class EqualSteps(str, Enum):
    """What happens to the last batch of an epoch if the rows do not fill it.

    PAD keeps it as it is: every row counts once. DROP leaves it out. REPEAT fills it up with rows from the beginning.
    """

    PAD = "pad"
    DROP = "drop"
    REPEAT = "repeat"

    @classmethod
    def parse(cls, text: str) -> EqualSteps:
        """Parse the argument `equal_steps`.

        Raises:
            ConfigError: The text is not one of the policies.
        """
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(repr(policy.value) for policy in cls)
            raise ConfigError(f"equal_steps={text!r}: choose one of {names}") from None


@dataclass(frozen=True, slots=True)
class GlobalBatchPlan:
    """One epoch of global batches.

    Attributes:
        rows_by_worker: The number of rows of each worker.
        batch_rows: Rows of a batch, of all workers together.
    """

    rows_by_worker: tuple[int, ...]
    batch_rows: int
    policy: EqualSteps = EqualSteps.PAD

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, the same for every worker."""
        rows = sum(self.rows_by_worker)
        return rows // self.batch_rows if self.policy is EqualSteps.DROP else -(-rows // self.batch_rows)

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, of all workers together."""
        rows = sum(self.rows_by_worker)
        return rows if self.policy is EqualSteps.PAD else self.num_steps * self.batch_rows

    def sizes(self, worker: int) -> np.ndarray:
        """Return the rows that a worker brings to each step, as int64[num_steps]; they may be 0."""
        if len(self.rows_by_worker) == 1:  # all at once, because each single step takes microseconds
            sizes = np.full(self.num_steps, self.batch_rows, np.int64)
            if self.policy is EqualSteps.PAD and len(sizes):
                sizes[-1] += self.rows_by_worker[0] - sizes.sum()
            return sizes
        steps = (counts[worker] for counts in self._steps())
        return np.fromiter(steps, np.int64, self.num_steps)

    def _steps(self) -> Iterator[Sequence[int]]:
        rows = sum(self.rows_by_worker)
        given = [0] * len(self.rows_by_worker)
        for step in range(self.num_steps):
            end = (step + 1) * self.batch_rows
            if end > rows and self.policy is EqualSteps.REPEAT:
                yield self._filled(given)
                return
            counts = _next_counts(self.rows_by_worker, given, min(end, rows))
            given = [before + count for before, count in zip(given, counts, strict=True)]
            yield counts

    def _filled(self, given: Sequence[int]) -> list[int]:
        """Return the last batch, filled up by the workers that have rows, in proportion."""
        rest = [rows - before for rows, before in zip(self.rows_by_worker, given, strict=True)]
        extra = [0] * len(rest)
        rows, missing = sum(self.rows_by_worker), self.batch_rows - sum(rest)
        while missing:
            part = min(missing, rows)
            counts = _next_counts(self.rows_by_worker, [0] * len(rest), part)
            extra = [before + count for before, count in zip(extra, counts, strict=True)]
            missing -= part
        return [own + more for own, more in zip(rest, extra, strict=True)]


def _next_counts(rows_by_worker: Sequence[int], given: Sequence[int], end: int) -> list[int]:
    """Return how many rows each worker brings to the next step.

    After that step all workers together have brought `end` rows, and each about its share of them. The computation uses
    whole numbers only, so that every worker gets the same result.
    """
    rows = sum(rows_by_worker)
    whole = [own * end // rows for own in rows_by_worker]
    counts = [max(share - before, 0) for share, before in zip(whole, given, strict=True)]
    missing = end - sum(given) - sum(counts)
    # The worker furthest behind its share comes first; a worker that was rounded up before is ahead of its share.
    behind = [own * end - rows * before for own, before in zip(rows_by_worker, given, strict=True)]
    order = sorted(range(len(counts)), key=lambda worker: -(behind[worker] - rows * counts[worker]))
    while missing > 0:
        for worker in order:
            if missing and given[worker] + counts[worker] < rows_by_worker[worker]:
                counts[worker] += 1
                missing -= 1
    while missing < 0:
        for worker in reversed(order):
            if missing and counts[worker]:
                counts[worker] -= 1
                missing += 1
    return counts


@dataclass(frozen=True, slots=True)
class UncountedShare:
    """A worker's part of rows whose number is unknown.

    Attributes:
        worker: This worker's number.
        num_workers: The number of workers that share the rows.
        is_endless: Whether the rows never end.
    """

    worker: int = 0
    num_workers: int = 1
    is_endless: bool = False

    def batch_rows(self, of_all: int) -> int:
        """Return this worker's rows of each batch: at least one, or it could never bring its rows."""
        return max(of_all // self.num_workers + (self.worker < of_all % self.num_workers), 1)


def uncounted(given: AssignedShard | None) -> UncountedShare:
    """Return the share that a launcher has assigned, or a share of all rows."""
    return UncountedShare(given.worker, len(given.rows_by_worker)) if given else UncountedShare()
