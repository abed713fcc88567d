"""Saves and resumes the reading position of a training, even if workers have other partitions after a restart.

In the rest of the interrupted epoch, each worker reads the rows that it would have read without the restart, wherever
they are now. From the next epoch on, it reads its newly assigned rows. So each epoch contains every row once.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.lineage import passes_of
from ignite_tf_magic.dataset.passes import EpochTracker, PassRecord, read_record
from ignite_tf_magic.training.checkpoints import Checkpoint
from ignite_tf_magic.training.group import WorkerGroup

# The prefix of records among a checkpoint's arrays. No trained variable has such a name.
_PREFIX = "source-"
_NOTHING: tuple[bool, PassRecord | None] = (False, None)


def record_sources(data: Any, epoch: int, group: WorkerGroup) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Record which worker reads which partitions of each source in an epoch. All workers must call it.

    Returns:
        Arrays for a checkpoint, and a list for its facts. The list has None for each source that needs no record.
    """
    sources = list(_sources(data))
    parts = [_part(passes, epoch, group) for passes in sources]
    totals = iter(group.sum_arrays([part for part in parts if part is not None]))
    arrays = {f"{_PREFIX}{at}": next(totals) for at, part in enumerate(parts) if part is not None}
    facts = [
        None if part is None else {"rows_by_worker": passes.rows_by_worker(epoch)}
        for passes, part in zip(sources, parts, strict=True)
    ]
    return arrays, facts


def is_record(name: str) -> bool:
    """Return whether a checkpoint's array with that name is the record of a source."""
    return name.startswith(_PREFIX)


def begin_at(data: Any, epoch: int, num_batches: int, saved: Checkpoint | None, group: WorkerGroup) -> None:
    """Make the data start in an epoch, after its finished batches. Warn if that is not exact.

    Args:
        data: The data of the training.
        epoch: The epoch in which the training begins or resumes.
        num_batches: Finished batches of that epoch.
        saved: The checkpoint from which it resumes, with `sources` among its facts; None without one.
        group: The workers.
    """
    sources = _sources(data)
    records = _records(saved) if saved and num_batches else [_NOTHING] * len(sources)
    is_exact = len(records) == len(sources)
    if not is_exact:
        records = [_NOTHING] * len(sources)
    for (passes, is_aligned), (was_shared, record) in zip(sources.items(), records, strict=True):
        share = passes.share
        fitting = record if record and share and record.fits(share) else None
        passes.begin(epoch, num_batches if is_aligned else 0, fitting)
        is_shared = was_shared or (num_batches and share and share.num_partitions)
        is_exact = is_exact and bool(fitting or not is_shared)
    if not is_exact and group.place.is_chief:
        warnings.warn(
            f"what the workers have read of epoch {epoch + 1} does not match what they can read now (the "
            "sources, the number of workers or the number of rows changed, or an epoch is not one pass "
            "over a source): rows of this epoch may be trained twice or left out",
            stacklevel=2,
        )


def _sources(data: Any) -> dict[EpochTracker, bool]:
    return passes_of(data) if isinstance(data, tf.data.Dataset) else {}


def _part(passes: EpochTracker, epoch: int, group: WorkerGroup) -> np.ndarray | None:
    """Return this worker's part of a record, or None on all workers if they do not share the source."""
    share = passes.share
    is_shared = share is not None and len(share.rows_by_worker) == group.place.size
    return passes.record_part(epoch) if is_shared else None


def _records(saved: Checkpoint) -> list[tuple[bool, PassRecord | None]]:
    """Return, for each source, whether the workers shared it, and its record or None."""
    return [
        _NOTHING
        if fact is None
        else (True, read_record(saved.arrays[f"{_PREFIX}{at}"], fact["rows_by_worker"]))
        for at, fact in enumerate(saved.facts.get("sources", ()))
    ]
