"""The worker of a prediction: reads its partitions, predicts, writes. Started by the script of `job`."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.dataset.batches import num_rows
from ignite_tf_magic.dataset.options import AssignedShard, read_options
from ignite_tf_magic.dataset.source import Source, open_source
from ignite_tf_magic.errors import IgniteTfError, PredictionMismatch
from ignite_tf_magic.prediction.inputs import Prepare, input_batches, inputs_of
from ignite_tf_magic.prediction.job import PredictionJob
from ignite_tf_magic.prediction.model_files import fetch_model, load_model
from ignite_tf_magic.prediction.outputs import columns_of
from ignite_tf_magic.prediction.progress import note
from ignite_tf_magic.prediction.reading import KeyQueue, ReadingFailure, rows_of
from ignite_tf_magic.prediction.target import make_target
from ignite_tf_magic.prediction.writing import OutputWriter
from ignite_tf_magic.protocol.layout import RowLayout

_TELL_INTERVAL_S = 5.0


def predict(text: str, prepare: Prepare | None = None) -> None:
    """Predict those partitions of this worker that are not done yet.

    Args:
        text: The prediction, as `PredictionJob.to_text` wrote it.
        prepare: Makes the model's input from a row's value.

    Raises:
        PredictionReplaced: Another prediction or load has begun to fill the cache.
        PredictionMismatch: The model does not fit the rows, or a cache cannot hold its outputs.
        IgniteTfError: Reading or writing failed.
    """
    job = PredictionJob.from_text(text)
    options = read_options(job.source, fields=job.fields, fill=job.fill, nulls="error")
    source = open_source(options)
    with connect(options.connect) as client:
        run = os.environ.get("IGNITE_TF_RUN_ID")
        done = note(client, job.target, job.mark, run=run).done
        left = _in_order_of_owners(source, done)
        speed = _Speed(_rows_of(options.assignment) if len(left) == len(source.partitions) else 0)
        if left and source.layout is not None:
            _predict(client, job, source, source.layout, left, prepare, speed)
    speed.tell()


def _in_order_of_owners(source: Source, done: frozenset[int]) -> list[int]:
    owners = source.baseline.owners
    return sorted(set(source.partitions) - done, key=lambda partition: (owners[partition], partition))


def _predict(
    client: Client,
    job: PredictionJob,
    source: Source,
    layout: RowLayout,
    partitions: Sequence[int],
    prepare: Prepare | None,
    speed: _Speed,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(fetch_model(job.model_path, job.model_sha256, Path(folder)), trust=job.trust)
    keys, failure = KeyQueue(partitions), ReadingFailure()
    rows = rows_of(client, source, partitions, keys, failure)
    batches = input_batches(rows, model, job.batch_rows, prepare, job.source)
    make = partial(make_target, client, client.cache(job.source), layout, job.target)
    try:
        with OutputWriter(client, job, make) as writer:
            for batch in batches:
                count = int(num_rows(batch))
                columns = columns_of(_outputs(model, batch, job.source), count, _output_names(model))
                writer.add(columns, keys.take(count))
                speed.add(count)
            writer.finish(keys.rest())
    except tf.errors.OpError as error:
        if isinstance(failure.error, IgniteTfError):
            raise failure.error from error
        raise


def _outputs(model: Any, batch: Any, cache: str) -> Any:
    try:
        return model.predict_on_batch(batch)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        given = tf.nest.map_structure(lambda each: f"{each.dtype.name}{list(each.shape)}", batch)
        said = " ".join(str(error).split())
        raise PredictionMismatch(
            f"the model {model.name!r} does not accept the rows of cache {cache!r}: {given}; its inputs are "
            f"{inputs_of(model) or 'not known'}. {type(error).__name__}: {said}"
        ) from error


def _output_names(model: Any) -> list[str]:
    return [str(name) for name in getattr(model, "output_names", None) or ()]


def _rows_of(assignment: AssignedShard | None) -> int:
    if assignment is None or assignment.to_count:
        return 0
    return assignment.rows_by_worker[assignment.worker]


class _Speed:
    """Prints the worker's progress to its output."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began_at = self._told_at = time.monotonic()
        self._rows = 0

    def add(self, rows: int) -> None:
        self._rows += rows
        if time.monotonic() - self._told_at > _TELL_INTERVAL_S:
            self.tell()

    def tell(self) -> None:
        self._told_at = time.monotonic()
        rate = self._rows / max(self._told_at - self._began_at, 1e-6)
        of_all = f" of {self._total:,}" if self._total else ""
        print(f"{self._rows:,}{of_all} rows predicted, {rate:,.0f} rows/s")  # noqa: T201 - a run's output
