"""The description of a prediction for its workers: model, source cache and target cache. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ignite_tf_magic.client.cache_facts import LoadMark, LoadState
from ignite_tf_magic.errors import ConfigError

DIRECTORY = "predictions"
DEFAULT_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class PredictionJob:
    """A prediction as its workers know it.

    Attributes:
        source: The cache that is read.
        target: The cache for the outputs.
        mark: Mark of the unfinished target; a worker that finds another mark there stops.
        model_path: Path of the model in igfs.
        model_sha256: Hash of that file, which ensures that the checked file is the one that is loaded.
        trust: Whether the model may contain code, which is then executed.
        batch_rows: Number of rows that the model gets at once.
        fields: Fields of a row that are read; None reads all.
        fill: Replacement for nulls, by field name.
    """

    source: str
    target: str
    mark: LoadMark
    model_path: str
    model_sha256: str
    trust: bool = False
    batch_rows: int = DEFAULT_BATCH_ROWS
    fields: tuple[str, ...] | None = None
    fill: Mapping[str, Any] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the job as text that `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> PredictionJob:
        """Read the text of `to_text`."""
        content = json.loads(text)
        mark = LoadMark(**{**content["mark"], "state": LoadState(content["mark"]["state"])})
        names = content["fields"]
        return replace(cls(**{**content, "mark": mark}), fields=None if names is None else tuple(names))


def digest_of(
    source: str, model: str, prepare: str, fields: tuple[str, ...] | None, fill: Mapping[str, Any]
) -> str:
    """Return a digest that identifies a prediction; only the same prediction can be continued.

    Args:
        source: The cache that is read.
        model: Digest of the model's content.
        prepare: Digest of the function that makes the model's input from a row; empty if there is none.
        fields: Fields that are read.
        fill: Replacements for nulls.

    Raises:
        ConfigError: `fill` contains a value that cannot be sent.
    """
    try:
        content = json.dumps([source, model, prepare, fields, dict(fill)], sort_keys=True)
    except TypeError as error:
        raise ConfigError(
            f"fill={dict(fill)!r}: only numbers, texts and lists of them are allowed: {error}"
        ) from error
    return f"predict {hashlib.sha256(content.encode()).hexdigest()}"


def script_of(job: PredictionJob, definitions: str, prepare: str) -> str:
    """Return the script that every worker runs.

    The job is part of the script, not one of the pushed variables: these are in igfs, where other users can write.

    Args:
        job: The prediction.
        definitions: Source that defines the function that makes the model's input from a row.
        prepare: Name of this function; empty if there is none.
    """
    # Each worker predicts alone. Without this, Keras would wait for the other workers when it is imported.
    head = "import os as _os; _os.environ.pop('TF_CONFIG', None)"
    call = f"_predict({job.to_text()!r}, {prepare or None})"
    return (
        f"{head}\n{definitions}\nfrom ignite_tf_magic.prediction.worker import predict as _predict; {call}\n"
    )
