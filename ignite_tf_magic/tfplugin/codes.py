"""Maps Python errors to TensorFlow's status codes."""

from __future__ import annotations

import errno
from enum import IntEnum

from ignite_tf_magic.errors import CacheNotFound, PartitionsLost


class Code(IntEnum):
    """The TensorFlow status codes in use."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


# The first matching class decides.
_CODE_OF_CLASS: tuple[tuple[type[BaseException], Code], ...] = (
    (CacheNotFound, Code.NOT_FOUND),
    (PartitionsLost, Code.DATA_LOSS),
    (FileNotFoundError, Code.NOT_FOUND),
    (FileExistsError, Code.ALREADY_EXISTS),
    (IsADirectoryError, Code.FAILED_PRECONDITION),
    (NotADirectoryError, Code.FAILED_PRECONDITION),
    (PermissionError, Code.PERMISSION_DENIED),
    (TimeoutError, Code.DEADLINE_EXCEEDED),
    (ConnectionError, Code.UNAVAILABLE),
    (NotImplementedError, Code.UNIMPLEMENTED),
    (ValueError, Code.INVALID_ARGUMENT),
    (KeyboardInterrupt, Code.CANCELLED),
)
_CODE_OF_ERRNO = {
    errno.ENOTEMPTY: Code.FAILED_PRECONDITION,
    errno.ESTALE: Code.FAILED_PRECONDITION,
    errno.EBADF: Code.FAILED_PRECONDITION,
    errno.ENOSPC: Code.RESOURCE_EXHAUSTED,
}
_MOST_CAUSES = 3


def code_of(error: BaseException) -> Code:
    """Return the status code for an error, or INTERNAL if no other code fits."""
    for kind, code in _CODE_OF_CLASS:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError):
        return _CODE_OF_ERRNO.get(error.errno or 0, Code.INTERNAL)
    return Code.INTERNAL


def describe(error: BaseException, tried: str) -> str:
    """Return a message with the attempted operation, the error, and its causes.

    Only explicit causes are included: the context may be an error that the user's own code was handling.
    """
    parts = [f"{tried}: {_one(error)}"]
    cause = error.__cause__
    while cause is not None and len(parts) <= _MOST_CAUSES:
        parts.append(f"caused by {_one(cause)}")
        cause = cause.__cause__
    return "; ".join(parts)


def _one(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
