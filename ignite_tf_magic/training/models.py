"""The trained model, left in the run's directory in igfs, from where a notebook loads it."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fsspec

from ignite_tf_magic.errors import IgniteTfError

DIRECTORY = "model"
# What Keras raises for models that it cannot save: of classes that do not say how they are made, above all.
_UNSAVABLE = (NotImplementedError, ValueError, TypeError, RuntimeError, AttributeError)


def leave_model(model: Any) -> None:
    """Save a model as model/NAME.keras of the run that this process is a worker of; outside of runs do nothing.

    A later one of that name replaces it, in one step. What cannot be saved is warned of.
    """
    run = os.environ.get("IGNITE_TF_RUN_URI")
    if not run:
        return
    url = f"{run}/{DIRECTORY}/{model.name}.keras"
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what does not matter to who did not ask for a file
                model.save(path)
            _put(path, url)
    except (*_UNSAVABLE, OSError, IgniteTfError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        warnings.warn(f"the trained model is not left at {url}: {reason}", stacklevel=2)


def _put(path: Path, url: str) -> None:
    files, target = fsspec.core.url_to_fs(url)
    files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(path), f"{target}.part")
    files.mv(f"{target}.part", target)
