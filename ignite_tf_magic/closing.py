"""A base class of things that are closed when their `with` block ends, however it ends."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """Base of what has a `close`: `with thing:` closes it."""

    __slots__ = ()

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free what is held."""
        raise NotImplementedError
