"""Finds the fields of a cache by the names that users write.

A name means the field with exactly this name, relative to the value ("pixels", "owner.name") or in full ("val.pixels",
"key.id"). If there is none, it means the field whose SQL column has this name, or whose name differs only in case.
A name that then fits two fields is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.messages import QueryEntity
from ignite_tf_magic.protocol.row_fields import Path

Nulls = str | frozenset[str] | None
_MAX_NEAR_NAMES = 3


def short_name(path: Path) -> str:
    """Return the name of a field in datasets: without "val" in front, unless that is ambiguous."""
    is_clear = path[0] == "val" and len(path) > 1 and path[1] not in ("key", "val")
    return ".".join(path[1:] if is_clear else path)


def full_name(path: Path) -> str:
    """Return the name of a field with "key" or "val" in front."""
    return ".".join(path)


class FieldNames:
    """Finds fields by their names.

    Args:
        paths: The fields.
        columns: The SQL columns of fields, by path in any case. Fields may be missing.
    """

    def __init__(self, paths: Iterable[Path], columns: Mapping[Path, str] | None = None) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._exact: dict[str, Path] = {}
        self._others: dict[str, dict[Path, None]] = {}
        folded = {folded_path(path): column for path, column in (columns or {}).items()}
        for path in self._paths:
            column = folded.get(folded_path(path), "")
            for name in (short_name(path), full_name(path)):
                self._exact.setdefault(name, path)
            for name in {short_name(path), full_name(path), full_name(path[1:]), column} - {""}:
                self._others.setdefault(name.upper(), {})[path] = None

    def find(self, name: str, asker: str) -> Path:
        """Return the path of the field that a name means.

        Args:
            name: The name as the user wrote it.
            asker: What names the field, for the error message: "fields=", "cache 'ITEMS'".

        Raises:
            SchemaError: There is no such field, or the name fits several.
        """
        if name in self._exact:
            return self._exact[name]
        found = list(self._others.get(name.replace('"', "").upper(), ()))
        if len(found) == 1:
            return found[0]
        if found:
            both = " and ".join(repr(short_name(path)) for path in found)
            raise SchemaError(f"{asker} names {name!r}, which fits the fields {both}: write one of these")
        raise SchemaError(f"{asker} names the field {name!r}, and there is none; {self._there_are(name)}")

    def full_names(self, names: Iterable[str], asker: str) -> frozenset[str]:
        """Return the full names of the fields that these names mean. Raises the errors of `find`."""
        return frozenset(full_name(self.find(name, asker)) for name in names)

    def _there_are(self, name: str) -> str:
        shown = {short_name(path).upper(): short_name(path) for path in self._paths}
        near = [shown[each] for each in difflib.get_close_matches(name.upper(), shown, n=_MAX_NEAR_NAMES)]
        hint = f"did you mean {' or '.join(near)}? There are" if near else "there are"
        return f"{hint}: {', '.join(sorted(shown.values()))}"


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """Options that name fields; see `LayoutFinder`."""

    fields: frozenset[str] | None
    fill: Mapping[str, Any]
    variable: frozenset[str]
    nulls: Nulls
    as_text: frozenset[str]

    def resolved(self, values: FieldNames, leaves: FieldNames) -> FieldOptions:
        """Return the options with full names.

        Args:
            values: The fields of the value, including objects.
            leaves: The fields of the key and the value that are not objects.

        Raises:
            SchemaError: An option names a field that does not exist, and would thus have no effect.
        """
        return FieldOptions(
            None if self.fields is None else values.full_names(self.fields, "fields"),
            {full_name(leaves.find(name, "fill")): value for name, value in self.fill.items()},
            leaves.full_names(self.variable, "variable"),
            leaves.full_names(self.nulls, "nulls") if isinstance(self.nulls, frozenset) else self.nulls,
            leaves.full_names(self.as_text, "as_text"),
        )


def sql_columns(table: QueryEntity | None) -> dict[Path, str]:
    """Return the SQL column of each field of a cache's table, by the path that the table declares."""
    found = {table.path_of(field): field.column for field in table.fields} if table else {}
    return {path: column for path, column in found.items() if path and column}


def folded_path(path: Path) -> Path:
    """Return a path in lower case. In a binary type, names that differ only in case mean one field."""
    return tuple(name.lower() for name in path)
