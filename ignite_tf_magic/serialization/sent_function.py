"""Loads a function that was sent to a worker. Checks the version of Python before anything else is imported."""

from __future__ import annotations

import base64
import linecache
import pickle
import sys
from typing import Any

from ignite_tf_magic.errors import ConfigError

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def unpickle_function(name: str, version: str, text: str) -> Any:
    """Load a function that `function_pickle` pickled.

    Raises:
        ConfigError: This Python has another minor version, or lacks a library that the function uses.
    """
    if version != VERSION:
        raise ConfigError(
            f"the function {name} was sent by Python {version}, and this worker runs Python {VERSION}: a function "
            "needs the same minor version on all hosts (--python, --requirements). A %%ignite_tf cell or a script does "
            "not"
        )
    try:
        function, sources = pickle.loads(base64.b64decode(text))  # noqa: S301 - part of the run's signed files
        for file, source in sources.items():  # for the lines in tracebacks
            linecache.cache.setdefault(file, (len(source), None, source.splitlines(keepends=True), file))
        return pickle.loads(function)  # noqa: S301
    except ImportError as error:
        raise ConfigError(
            f"the function {name} uses a module that this worker cannot import: {error}"
        ) from error
