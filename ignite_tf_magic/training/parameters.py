"""Records a run's hyperparameters: values that its script passes, and the arguments of `compile` and `fit`.

They are stored as JSON in the run's directory in igfs, beside the records of its trainings. This module does not import
TensorFlow: scripts of any kind write parameters, and notebooks read them.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import numpy as np

from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.training.task import task

FILE_NAME = "parameters.json"
TOLD = "config"  # the part with the values that the script passes
MOST_BYTES = 1 << 20
_SCALARS = (bool, int, float, str, type(None))

_parts: dict[str, dict[str, Any]] = {}


def config(**values: Any) -> dict[str, Any]:
    """Record hyperparameters of this process's run, and return them. Runs can be found and compared by them.

    Only the chief writes them, and the last value of a name counts. Outside of a run the values are only checked.

    Example:
        settings = ignite_tf_magic.config(learning_rate=0.01, layers=[64, 32])

    Raises:
        ConfigError: A value is not a number, a text, a boolean, None, or a list of these.
    """
    for name, value in values.items():
        if not _is_plain(value):
            raise ConfigError(
                f"config({name}={value!r:.60}): {type(value).__name__} is not a valid hyperparameter type; "
                "pass a number, a text, a boolean, None, or a list of these"
            )
    note(TOLD, values)
    return values


def note(part: str, values: Mapping[str, Any]) -> None:
    """Record values of a part: the script, or one of its trainings. A failure to write is only a warning."""
    _parts.setdefault(part, {}).update({name: _as_json(value) for name, value in values.items()})
    url = os.environ.get("IGNITE_TF_RUN_URI")
    if not url or not task().is_chief:
        return
    try:
        files, path = fsspec.core.url_to_fs(url)
        files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/{FILE_NAME}", json.dumps(_parts).encode())
    except (IgniteTfError, OSError) as error:
        warnings.warn(f"hyperparameters cannot be written to {url}: {error}", stacklevel=2)


def parse(data: bytes) -> dict[str, Any]:
    """Parse the file that `note` writes, and return the script's values merged over those of its last training.

    Anyone can write such files in igfs, so values that are not plain are left out.
    """
    try:
        parts = json.loads(data[:MOST_BYTES])
        if not isinstance(parts, dict):
            return {}
        trainings = [part for name, part in parts.items() if name != TOLD and isinstance(part, dict)]
        told = parts.get(TOLD)
        found = {**(trainings[-1] if trainings else {}), **(told if isinstance(told, dict) else {})}
        return {str(name): value for name, value in found.items() if _is_plain(value)}
    except (ValueError, RecursionError):
        return {}


def of_fit(model: Any, given: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `compile` and `fit` that are numbers or have a name, and the versions."""
    optimizer = getattr(model, "optimizer", None)
    found = {
        "model": getattr(model, "name", None),
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "learning_rate": _learning_rate(optimizer),
        "loss": _named(getattr(model, "loss", None)),
        **{name: _named(given.get(name)) for name in ("epochs", "batch_size", "steps_per_epoch")},
        **versions,
    }
    return {name: value for name, value in found.items() if value is not None}


def _learning_rate(optimizer: Any) -> Any:
    schedule = getattr(optimizer, "_learning_rate", None)
    if schedule is not None and hasattr(schedule, "get_config") and not hasattr(schedule, "assign"):
        return type(schedule).__name__
    rate = getattr(optimizer, "learning_rate", None)
    try:
        return (
            None if rate is None else float(f"{float(rate):.6g}")
        )  # as the script wrote it, without the rounding error of float32
    except (TypeError, ValueError):
        return None


def _named(value: Any) -> Any:
    """Return a plain value as it is, or the name of an object or its type."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_named(each)}" for name, each in value.items())
    if isinstance(value, Sequence):
        return ", ".join(str(_named(each)) for each in value)
    return getattr(value, "__name__", None) or getattr(value, "name", None) or type(value).__name__


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return isinstance(value, _SCALARS)


def _as_json(value: Any) -> Any:
    """Return a value for JSON, with NaN and infinity, which JSON cannot represent, as text."""
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
