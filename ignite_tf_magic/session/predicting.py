"""`predict`: runs a prediction in the given, the configured or the embedded cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ignite_tf_magic.data.load_options import LoadProgress
from ignite_tf_magic.prediction.job import DEFAULT_BATCH_ROWS
from ignite_tf_magic.serialization.terminal_text import echo
from ignite_tf_magic.session.facade import open_session
from ignite_tf_magic.session.prediction_steps import PredictionOutcome
from ignite_tf_magic.settings.options import ConnectOptions


def predict(
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
    options: ConnectOptions | None = None,
    report: Callable[[str], None] = echo,
    **run: Any,
) -> PredictionOutcome:
    """Predict all rows of a cache into another, under the same keys, on workers beside the data.

    Arguments and errors are those of `Session.predict` and `open_session`.
    """
    with open_session(options, report=report) as session:
        outcome = session.predict(
            model,
            source,
            target,
            workers=workers,
            batch_size=batch_size,
            prepare=prepare,
            fields=fields,
            fill=fill,
            replace=replace,
            resume=resume,
            trust=trust,
            progress=progress,
            **run,
        )
    report(str(outcome))
    return outcome
