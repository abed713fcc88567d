"""A base class for objects that a `with` block closes, also after an exception."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """A base class for objects with a `close` method, which `with` calls."""

    __slots__ = ()

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the resources."""
        raise NotImplementedError
