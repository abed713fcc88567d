"""Checks objects made from untrusted JSON against the type annotations of their classes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

Check = Callable[[Any], bool]

# Times are in seconds since the epoch; Python's calendar ends with the year 9999.
_MOST_SECONDS = 250_000_000_000.0
_MOST = 2**63


def misfits(value: Any) -> Iterator[str]:
    """Yield the names of a dataclass object's fields whose values do not match their annotations.

    Numbers are bounded, too: floats, which are times and durations, by the calendar's range; integers by 63 bits.
    """
    for name, fits in _checks(value.__class__).items():
        if not fits(getattr(value, name)):
            yield name


@cache
def _checks(kind: Any) -> dict[str, Check]:
    known = get_type_hints(kind)
    return {each.name: _check_of(known[each.name]) for each in fields(kind)}


@cache
def _check_of(hint: Any) -> Check:
    """Return a type check for one value. Checks are cached because a record has thousands of values."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [_check_of(each) for each in inner]
        return lambda value: any(fits(value) for fits in kinds)
    if origin is tuple:
        return _check_of_tuple(inner)
    if origin is not None and issubclass(origin, Mapping):
        are_keys, are_contents = map(_check_of_all, inner)
        return lambda value: (
            isinstance(value, Mapping) and are_keys(list(value)) and are_contents(list(value.values()))
        )
    if is_dataclass(hint):
        return lambda value: isinstance(value, hint) and not any(misfits(value))  # type: ignore[arg-type]
    return _PLAIN.get(hint, lambda value: isinstance(value, hint))


def _check_of_tuple(inner: tuple[Any, ...]) -> Check:
    if inner[1:] == (Ellipsis,):
        are_all = _check_of_all(inner[0])
        return lambda value: isinstance(value, tuple) and are_all(value)
    kinds = [_check_of(each) for each in inner]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(kinds)
        and all(fits(each) for fits, each in zip(kinds, value, strict=True))
    )


def _check_of_all(hint: Any) -> Check:
    """Return a type check for a sequence of values. It checks thousands of numbers at once, not one by one."""
    inner = get_args(hint)
    if get_origin(hint) is tuple and inner[1:] != (Ellipsis,):
        columns = [_check_of_all(each) for each in inner]
        return lambda values: (
            {*map(type, values)} <= {tuple}
            and {*map(len, values)} <= {len(columns)}
            and all(fit(column) for fit, column in zip(columns, zip(*values, strict=True), strict=False))
        )
    fits = _check_of(hint)
    return _PLAIN_ALL.get(hint, lambda values: all(map(fits, values)))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


_PLAIN: dict[Any, Check] = {
    NoneType: lambda value: value is None,
    str: lambda value: isinstance(value, str) and (value.isascii() or _is_text(value)),
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int and abs(value) < _MOST,
    # This comparison is False for NaN.
    float: lambda value: type(value) in (int, float) and abs(value) < _MOST_SECONDS,
}
_PLAIN_ALL: dict[Any, Check] = {
    str: lambda values: {*map(type, values)} <= {str} and _is_text("".join(values)),
    int: lambda values: (
        {*map(type, values)} <= {int} and min(values, default=0) > -_MOST and max(values, default=0) < _MOST
    ),
}
