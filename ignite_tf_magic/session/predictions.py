"""The part of a session that predicts."""

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
    """The part of a session that predicts."""

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
        """Predict all rows of a cache into another, beside their keys; blocks until all rows are written.

        Each worker predicts its own partitions. A value has a field for each output: `prediction` for one, else by the
        outputs' names; an output of several numbers is an array. SQL has them as table PUBLIC.TARGET.

        Args:
            model: A model of Keras 3 or tf_keras, or the path of a .keras file, here or in igfs.
            source: The cache that is read. Its rows have to stay as they are meanwhile.
            target: The cache that gets the outputs; made with the source's keys, mode and backups.
            workers: How many; by default one for each node.
            batch_size: Rows that the model gets at once.
            prepare: Makes the model's input of a row's value, as a function for `map` does; of a tuple its first item
                is taken. Its source is sent, with what it uses. By default the fields that are called as the inputs, or
                the only field.
            fields: Dotted names of the value's fields that are read; None reads all.
            fill: What a null becomes, by field name.
            replace: Take the place of a cache of that name, whose rows go at once.
            resume: Go on with the same prediction (model, source, function, fields) that was ended before it was whole.
            trust: Whether a model's file may bring code, which the workers run.
            progress: Told the rows written so far and all rows.
            run: As in `RunRequest`: `hosts`, `python`, `num_gpus`, `memory_bytes`, `env`, `requirements`, ...

        Raises:
            ConfigError: The model cannot be sent, or options contradict each other.
            CacheNotFound, EmptyCache: There is no source, or nothing in it.
            CacheExists: The target has rows.
            LoadNotResumed: It is of something else than this prediction.
            LoadIncomplete, RowsLost, NodesMissing: Only a part of the source's rows is there.
            PlacementError, LaunchError: The workers cannot be started.
            RunFailed: The run did not succeed; says why, as when model and rows do not fit. What is written stays.
            PredictionIncomplete: Not each row of the source has one in the target; says in which partitions.
        """
        names = None if fields is None else tuple(fields)
        options = PredictionOptions(
            workers, batch_size, prepare, names, dict(fill or {}), replace, resume, trust, run, progress
        )
        return Prediction(self, source, target, options).run(model)
