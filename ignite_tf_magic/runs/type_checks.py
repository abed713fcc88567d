"""Whether objects that were made from other people's JSON have the types that their classes say. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

# Times are in seconds since the epoch; Python's calendar ends with the year 9999.
_MOST_SECONDS = 250_000_000_000.0
_MOST = 2**63


def misfits(value: Any, place: str = "") -> Iterator[str]:
    """Name the fields of a dataclass's object that hold what their annotations do not allow.

    Numbers are bounded, too: floats are times and spans that a calendar knows, whole numbers have 63 bits.
    """
    for name, hint in _hints(type(value)).items():  # type: ignore[arg-type]
        found, here = getattr(value, name), f"{place}{name}"
        if not _fits(found, hint):
            yield here
        elif is_dataclass(found):
            yield from misfits(found, f"{here}.")


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    known = get_type_hints(kind)
    return {each.name: known[each.name] for each in fields(kind)}  # type: ignore[arg-type]


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        return isinstance(value, tuple) and _fits_each(value, inner)
    if origin is not None and issubclass(origin, Mapping):
        key, content = inner
        return isinstance(value, Mapping) and all(
            _fits(name, key) and _fits(each, content) for name, each in value.items()
        )
    return _fits_plain(value, hint)


def _fits_each(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    if hints[1:] == (Ellipsis,):
        return all(_fits(each, hints[0]) for each in values)
    return len(values) == len(hints) and all(map(_fits, values, hints))


def _fits_plain(value: Any, hint: Any) -> bool:
    if hint in (None, NoneType):
        return value is None
    if hint is str:
        return isinstance(value, str) and _is_text(value)
    if hint is bool:
        return type(value) is bool
    if hint is int:
        return type(value) is int and abs(value) < _MOST
    if hint is float:
        return type(value) in (int, float) and abs(value) < _MOST_SECONDS  # not so of what is no number
    if is_dataclass(hint):
        return isinstance(value, hint) and not any(misfits(value))  # type: ignore[arg-type]
    return isinstance(value, hint)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return True
