"""The methods of a session that predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ignite_tf_magic.data.load_options import LoadProgress
from ignite_tf_magic.prediction.job import DEFAULT_BATCH_ROWS
from ignite_tf_magic.session.prediction_steps import (
    Prediction,
    PredictionOptions,
    PredictionOutcome,
    RunningSession,
)


class Predicting:
    """The methods of a session that predict."""

    def predict(
        self: RunningSession,
        model: Any,
        source: str,
        target: str,
        *,
        workers: int | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        prepare: Callable[[Any], Any] | None = None,
        fields: Sequence[str] | None = None,
        fill: Mapping[str, Any] | None = None,
        replace: bool = False,
        resume: bool = False,
        trust: bool = False,
        progress: LoadProgress | None = None,
        **run: Any,
    ) -> PredictionOutcome:
        """Predict all rows of a cache into another, under the same keys; blocks until all rows are written.

        Each worker predicts its own partitions. An output value has a field for each output: `prediction` for a single
        one, else the outputs' names. An output of several numbers is an array. SQL sees the outputs as table
        PUBLIC.TARGET.

        Args:
            model: A model of Keras 3 or tf_keras, or the path of a .keras file, here or in igfs.
            source: The cache that is read. Its rows must not change meanwhile.
            target: The cache for the outputs; created with the source's keys, mode and backups.
            workers: Number of workers; by default one for each node.
            batch_size: Number of rows that the model gets at once.
            prepare: Makes the model's input from a row's value, like a function for `map`; the first item of a tuple is
                used. Its source is sent, with everything that it uses. By default, the input is the fields named like
                the model's inputs, or the only field.
            fields: Dotted names of the value's fields that are read; None reads all.
            fill: Replacement for nulls, by field name.
            replace: Replace a cache of that name; its rows are removed at once.
            resume: Continue the same prediction (model, source, function, fields) after it was interrupted.
            trust: Whether a model's file may contain code, which the workers execute.
            progress: Called with the rows written so far and all rows.
            run: As in `RunRequest`: `hosts`, `python`, `num_gpus`, `memory_bytes`, `env`, `requirements`, ...

        Raises:
            ConfigError: The model cannot be sent, or options contradict each other.
            CacheNotFound, EmptyCache: The source does not exist or is empty.
            CacheExists: The target has rows.
            LoadNotResumed: The target belongs to a different prediction or load.
            LoadIncomplete, RowsLost, NodesMissing: Some of the source's rows are missing.
            PlacementError, LaunchError: The workers cannot be started.
            RunFailed: The run did not succeed, for example because model and rows do not fit. Written rows stay.
            PredictionIncomplete: Some rows of the source have no output; the message lists the partitions.
        """
        names = None if fields is None else tuple(fields)
        options = PredictionOptions(
            workers, batch_size, prepare, names, dict(fill or {}), replace, resume, trust, run, progress
        )
        return Prediction(self, source, target, options).run(model)
