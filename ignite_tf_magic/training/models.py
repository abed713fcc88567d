"""Saves the trained model in the run's directory in igfs, from where a notebook loads it."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from ignite_tf_magic.errors import IgniteTfError

DIRECTORY = "model"
# The errors that Keras raises for models that it cannot save, mostly because a class lacks `get_config`.
_UNSAVABLE = (NotImplementedError, ValueError, TypeError, RuntimeError, AttributeError)


WHOLE, WEIGHTS = ".keras", ".weights.h5"


def leave_model(model: Any) -> None:
    """Save a model as model/NAME.keras in this worker's run. Outside of runs, do nothing.

    A later model of that name replaces it in one step. If Keras cannot save the whole model, only the weights are
    saved, as model/NAME.weights.h5, with a warning. If that fails, too, there is only a warning.
    """
    run = os.environ.get("IGNITE_TF_RUN_URI")
    if not run:
        return
    base = f"{run}/{DIRECTORY}/{model.name}"
    reason = _left(model.save, f"{base}{WHOLE}")
    if reason is None:
        return
    with as_built(model):
        failure = _left(model.save_weights, f"{base}{WEIGHTS}")
    if failure is None:
        warnings.warn(
            f"only the weights of the trained model were saved, at {base}{WEIGHTS}: {reason} In the "
            "notebook, make the model as the script does and load them: RUN.model(into=model)",
            stacklevel=2,
        )
    else:
        warnings.warn(f"the trained model could not be saved at {base}: {reason} {failure}", stacklevel=2)


@contextmanager
def as_built(model: Any) -> Iterator[None]:
    """Mark a model as built in a block, so that Keras saves and loads its weights.

    Keras cannot know whether a model with a custom step is built.
    """
    was_built = model.built
    model.built = True
    try:
        yield
    finally:
        model.built = was_built


def _left(save: Callable[[Path], Any], url: str) -> str | None:
    """Save a file at a URL. Return None, or the reason for a failure as a sentence."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"model{WEIGHTS if url.endswith(WEIGHTS) else WHOLE}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the user did not request this file
                save(path)
            _put(path, url)
    except (*_UNSAVABLE, OSError, IgniteTfError) as error:
        return f"{_sentence(str(error)) or type(error).__name__}."
    return None


def _sentence(text: str) -> str:
    """Return the first paragraph of a message as one line of at most 300 characters, without a final period."""
    return " ".join(text.strip().partition("\n\n")[0].split()).rstrip(".")[:300]


def _put(path: Path, url: str) -> None:
    files, target = fsspec.core.url_to_fs(url)
    files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(path), f"{target}.part")
    files.mv(f"{target}.part", target)
