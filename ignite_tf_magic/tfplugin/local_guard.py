"""A guard for libraries that do not ask TensorFlow for files: an error instead of a directory named "igfs:"."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ignite_tf_magic.errors import InvalidPath

_EVENTS = frozenset({"open", "os.mkdir"})


class LocalGuard:
    """Refuses to create local files and directories below "SCHEME:". One for each process; it stays.

    Keras' legacy .h5 writer, for one, makes the directories of "igfs:///a/m.h5" on the local disk and writes there.
    """

    def __init__(self) -> None:
        self._schemes: tuple[str, ...] = ()
        self._events = _EVENTS  # a module's names are gone before its process has ended

    def add(self, schemes: Iterable[str]) -> None:
        """Guard these schemes, too."""
        if not self._schemes:
            sys.addaudithook(self._audit)
        self._schemes = tuple(sorted({*self._schemes, *(f"{scheme}:" for scheme in schemes)}))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self._events:
            return
        path = arguments[0]
        if isinstance(path, str) and path.startswith(self._schemes):
            raise InvalidPath(
                "this library writes to the local disk by itself and does not know such addresses. Write to a local "
                "path and copy it (tf.io.gfile.copy), or use a format that goes through TensorFlow, as .keras, "
                ".weights.h5, SavedModel and checkpoints do",
                path,
            )


def complete_gfile() -> None:
    """Give TensorFlow's GFile the attribute `closed` that Keras' CSVLogger asks every file for.

    Source: TensorFlow 2.21, `tf.io.gfile.GFile` opens its streams lazily and has no `closed`; Keras 3.15, csv_logger.
    """
    from tensorflow.io.gfile import GFile

    if not hasattr(GFile, "closed"):
        GFile.closed = property(_is_closed)


def _is_closed(file: Any) -> bool:
    return getattr(file, "_writable_file", None) is None and getattr(file, "_read_buf", None) is None
