"""Makes libraries that bypass TensorFlow's file systems fail, instead of creating a directory named "igfs:"."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from ignite_tf_magic.errors import InvalidPath

_EVENTS = frozenset({"open", "os.mkdir"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_READING_FAILS = (
    "this library reads from the local disk and does not support such addresses. Copy the file to a local "
    "path (tf.io.gfile.copy), or pass its content: io.BytesIO(tf.io.gfile.GFile(path, 'rb').read())"
)
_WRITING_FAILS = (
    "this library writes to the local disk and does not support such addresses. Write to a local path and "
    "copy it (tf.io.gfile.copy), or use a format that goes through TensorFlow, such as .keras, "
    ".weights.h5, SavedModel and checkpoints"
)


class LocalGuard:
    """A guard that forbids opening local files and creating directories under the name "SCHEME:".

    A process has one guard, which cannot be removed. For example, Keras' legacy .h5 writer would otherwise create the
    directories of "igfs:///a/m.h5" on the local disk and write there.
    """

    def __init__(self) -> None:
        self._schemes: tuple[str, ...] = ()
        # Kept here because a module's names may be deleted before its process ends.
        self._events, self._writing = _EVENTS, _WRITING
        self._reading_fails, self._writing_fails = _READING_FAILS, _WRITING_FAILS

    def add(self, schemes: Iterable[str]) -> None:
        """Guard additional schemes."""
        if not self._schemes:
            sys.addaudithook(self._audit)
        self._schemes = tuple(sorted({*self._schemes, *(f"{scheme}:" for scheme in schemes)}))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self._events:
            return
        path = arguments[0]
        if isinstance(path, str) and path.startswith(self._schemes):
            reads = event == "open" and not arguments[2] & self._writing
            raise InvalidPath(self._reading_fails if reads else self._writing_fails, path)


def complete_gfile() -> None:
    """Add the attribute `closed` to TensorFlow's GFile, which Keras' CSVLogger reads from every file.

    Source: TensorFlow 2.21, `tf.io.gfile.GFile` opens its streams lazily and has no `closed`; Keras 3.15, csv_logger.
    """
    from tensorflow.io.gfile import GFile

    if not hasattr(GFile, "closed"):
        GFile.closed = property(_is_closed)


def _is_closed(file: Any) -> bool:
    return getattr(file, "_writable_file", None) is None and getattr(file, "_read_buf", None) is None
