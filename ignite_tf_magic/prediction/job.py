"""What workers are told of a prediction: which model, from which cache into which. Pure."""

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
        target: The cache that gets the outputs.
        mark: What is noted of the target while it is not whole; a worker that finds another one there stops.
        model_path: Where the model lies in igfs.
        model_sha256: Of that file: what was looked at is what is loaded.
        trust: Whether the model may bring code of its own, which is then run.
        batch_rows: Rows that the model gets at once.
        fields: Fields of a row that are read; None reads all.
        fill: What a null becomes, by field name.
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
        """Return it as text that `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> PredictionJob:
        """Read what `to_text` gave."""
        content = json.loads(text)
        mark = LoadMark(**{**content["mark"], "state": LoadState(content["mark"]["state"])})
        names = content["fields"]
        return replace(cls(**{**content, "mark": mark}), fields=None if names is None else tuple(names))


def digest_of(
    source: str, model: str, prepare: str, fields: tuple[str, ...] | None, fill: Mapping[str, Any]
) -> str:
    """Tell a prediction from others: only the same one is gone on with.

    Args:
        source: The cache that is read.
        model: Digest of what the model is made of.
        prepare: Digest of the function that makes the model's input of a row; empty for none.
        fields: Fields that are read.
        fill: What nulls become.

    Raises:
        ConfigError: `fill` holds what cannot be sent.
    """
    try:
        content = json.dumps([source, model, prepare, fields, dict(fill)], sort_keys=True)
    except TypeError as error:
        raise ConfigError(
            f"fill={dict(fill)!r}: numbers, texts and lists of them are needed: {error}"
        ) from error
    return f"predict {hashlib.sha256(content.encode()).hexdigest()}"


def script_of(job: PredictionJob, definitions: str, prepare: str) -> str:
    """Return what every worker runs.

    The job stands in it, and not among the variables that are sent along: these lie in igfs, where others write.

    Args:
        job: The prediction.
        definitions: What defines the function that makes the model's input of a row.
        prepare: Its name; empty for none.
    """
    # Each worker predicts alone: Keras must not wait for the others when it is imported.
    head = "import os as _os; _os.environ.pop('TF_CONFIG', None)"
    call = f"_predict({job.to_text()!r}, {prepare or None})"
    return (
        f"{head}\n{definitions}\nfrom ignite_tf_magic.prediction.worker import predict as _predict; {call}\n"
    )
