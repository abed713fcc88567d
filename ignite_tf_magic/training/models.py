"""The trained model, left in the run's directory in igfs, from where a notebook loads it."""

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
# What Keras raises for models that it cannot save: of classes that do not say how they are made, above all.
_UNSAVABLE = (NotImplementedError, ValueError, TypeError, RuntimeError, AttributeError)


WHOLE, WEIGHTS = ".keras", ".weights.h5"


def leave_model(model: Any) -> None:
    """Save a model as model/NAME.keras of the run that this process is a worker of; outside of runs do nothing.

    A later one of that name replaces it, in one step. Of a model that does not say how it is made, and cannot be saved
    whole, the weights are left as model/NAME.weights.h5, with a warning; so it is said when that fails, too.
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
            f"of the trained model only the weights are left, at {base}{WEIGHTS}: {reason} In the notebook, make the "
            "model as the script does and load them: RUN.model(into=model)",
            stacklevel=2,
        )
    else:
        warnings.warn(f"the trained model is not left at {base}: {reason} {failure}", stacklevel=2)


@contextmanager
def as_built(model: Any) -> Iterator[None]:
    """Take a model for built, so that its weights are saved and loaded; Keras cannot know of one with its own step."""
    was_built = model.built
    model.built = True
    try:
        yield
    finally:
        model.built = was_built


def _left(save: Callable[[Path], Any], url: str) -> str | None:
    """Have a file saved, and leave it at a URL; returns why it could not be, as a sentence."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"model{WEIGHTS if url.endswith(WEIGHTS) else WHOLE}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what does not matter to who did not ask for a file
                save(path)
            _put(path, url)
    except (*_UNSAVABLE, OSError, IgniteTfError) as error:
        return f"{_sentence(str(error)) or type(error).__name__}."
    return None


def _sentence(text: str) -> str:
    """Return the first sentence of a message, which may be broken into lines."""
    return " ".join(text.strip().partition("\n\n")[0].split()).rstrip(".")[:300]


def _put(path: Path, url: str) -> None:
    files, target = fsspec.core.url_to_fs(url)
    files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(path), f"{target}.part")
    files.mv(f"{target}.part", target)
