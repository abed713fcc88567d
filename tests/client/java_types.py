"""Reads and writes the values that Java stored in a cluster in every way; makes the table of docs/types.md."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import struct
import subprocess
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.java_client import java_command
from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.client.type_registry import objects_in
from ignite_tf_magic.dataset.array_batches import Batches
from ignite_tf_magic.dataset.deal import EqualSteps
from ignite_tf_magic.dataset.options import read_options
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.protocol.objects import BinaryObject, name_id
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.times import date_of_java, instant_of
from ignite_tf_magic.protocol.typed_values import (
    COLLECTIONS,
    MAPS,
    Byte,
    Char,
    EnumValue,
    Float,
    Int,
    JavaClass,
    JavaSerialized,
    JavaTime,
    Short,
    SqlDate,
    Timestamp,
    TypedArray,
    TypedCollection,
    TypedMap,
    UtilDate,
)
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

SOURCE = Path(__file__).parent / "java" / "FillTypes.java"
DOCUMENT = Path(__file__).parents[2] / "docs" / "types.md"
# Each connection takes 2 MiB of direct memory, limited to the heap size. Datasets keep connections for 10 s.
HEAP = "1g"
PLACES = ("value", "key", "field", "nested", "elements")
_ARRAY_NAMES = {
    "i2": "short",
    "i4": "int",
    "i8": "long",
    "f4": "float",
    "f8": "double",
    "u2": "char",
    "b1": "boolean",
}
_ITEMS = {
    TypeCode.STRING_ARRAY: "java.lang.String",
    TypeCode.UUID_ARRAY: "java.util.UUID",
    TypeCode.DATE_ARRAY: "java.util.Date",
    TypeCode.TIME_ARRAY: "java.sql.Time",
    TypeCode.TIMESTAMP_ARRAY: "java.sql.Timestamp",
    TypeCode.DECIMAL_ARRAY: "java.math.BigDecimal",
}


@dataclass(frozen=True)
class Case:
    """A type, and the values of it that Java stored, in the form that `described` returns."""

    name: str
    is_key: bool
    values: list[Any]

    @property
    def plain(self) -> str:
        return f"PLAIN_{self.name}"

    @property
    def rows(self) -> str:
        return f"ROW_{self.name}"


class Java:
    """The running program of FillTypes.java, which has filled the caches."""

    def __init__(self, endpoint: Endpoint) -> None:
        command = [*java_command(print, SOURCE), f"{endpoint.host}:{endpoint.port}"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        told = list(self._told_until("filled"))
        assert all(why is None for *_, why in told), [line for line in told if line[-1]]
        self.cases = [Case(name, kind == "value", values) for _, name, kind, values, _ in told]

    def check(self) -> dict[str, str | None]:
        """Have Java compare the rows of BACK with what it stored. Returns per key the difference, or None."""
        assert self._process.stdin is not None
        self._process.stdin.write("check\n")
        self._process.stdin.flush()
        return {key: difference for _, key, difference in self._told_until("checked")}

    def _told_until(self, last: str) -> Iterator[list[Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if told == [last]:
                return
            yield told
        raise AssertionError(f"Java ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def described(value: Any, above: tuple[Any, ...] = ()) -> Any:
    """Describe a value as FillTypes.java does: its Java type and its complete content."""
    for up, each in enumerate(above, 1):
        if each is value and isinstance(value, BinaryObject | list):
            return ["above", up]
    above = (value, *above)
    if isinstance(value, BinaryObject):
        return [
            "object",
            value.type_name,
            {name: described(item, above) for name, item in sorted(value.fields.items())},
        ]
    if isinstance(value, TypedMap):
        return ["map", MAPS[value.kind], [[described(each, above) for each in pair] for pair in value]]
    if isinstance(value, TypedCollection):
        return ["collection", COLLECTIONS[value.kind], [described(each, above) for each in value]]
    if isinstance(value, TypedArray):
        return ["array", _item_class(value), [described(each, above) for each in value]]
    return _plain(value)


def _item_class(array: TypedArray) -> str:
    return _ITEMS.get(array.code) or ("java.lang.Object" if array.type_id == -1 else f"type {array.type_id}")


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None:
        return None
    for known, name in ((Byte, "byte"), (Short, "short"), (Int, "int"), (Char, "char")):
        if kind is known:
            return [name, int(value)]
    if kind is EnumValue:
        return ["enum", value.type_name, value.name, int(value)]
    if kind is Float:
        return ["float", format(struct.unpack("<I", struct.pack("<f", value))[0], "x")]
    if kind is float:
        return ["double", format(struct.unpack("<Q", struct.pack("<d", value))[0], "x")]
    if kind in (bool, int, str, bytes):
        name = {bool: "boolean", int: "long", str: "text"}.get(kind)
        return [name, value] if name else ["array", "byte", np.frombuffer(value, np.int8).tolist()]
    if kind in (Timestamp, UtilDate, SqlDate):
        millis, nanos = instant_of(value) or (0, 0)
        return (
            ["timestamp", millis, nanos]
            if kind is Timestamp
            else ["date" if kind is UtilDate else "sql date", millis]
        )
    if isinstance(value, dt.time):
        since = dt.datetime.combine(dt.date(1970, 1, 1), value) - dt.datetime(1970, 1, 1)
        return [
            "time",
            value.millis if isinstance(value, JavaTime) else since // dt.timedelta(milliseconds=1),
        ]
    return _other(value)


def _other(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return ["uuid", str(value)]
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        return ["decimal", str(int("".join(map(str, digits))) * (-1 if sign else 1)), -int(exponent)]
    if isinstance(value, np.ndarray):
        name = _ARRAY_NAMES[value.dtype.str[1:]]
        items = value.view(f"<u{value.dtype.itemsize}") if value.dtype.kind == "f" else value
        return [
            "array",
            name,
            [format(item, "x") for item in items.tolist()] if items is not value else value.tolist(),
        ]
    if isinstance(value, JavaClass):
        return ["class", str(value)]
    return ["java", value] if isinstance(value, JavaSerialized) else ["unknown", repr(value)]


def alike(found: Any, told: Any) -> bool:
    """Return whether two descriptions are of the same value; sets and HashMaps have no order."""
    return bool(_sorted(found) == _sorted(told))


def _sorted(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _sorted(each) for key, each in told.items()}
    if not isinstance(told, list):
        return told
    each = [_sorted(item) for item in told]
    if each[:2] in (["collection", "HashSet"], ["map", "HashMap"]):
        each[2] = sorted(each[2], key=json.dumps)
    return each


# The accepted differences from Java's values, and their reasons.
_SERIALISED = "refused: serialised by Java, which alone can read it"
_RAW = "as `BinaryObject`: `raw` holds the bytes of the class's own form"
_AS_OBJECTS = "as Object[]: the node converts it"
_CLASSES = ("FillTypes$Color", "FillTypes$Animal")
_REASONS = {
    "a class that Java serialises in its own way": _SERIALISED,
    "which has no tensor form": "refused: no tensor form",
    "there is no column to read": "refused: no column to read",
    "null in all rows sampled": "refused: no tensor form",
    "rows differ in": "refused: rows of several types",
    "outside of September 1677": "refused: some of the values are not between 1677 and 2262",
    "which has no text": "-",
    "and there is none; ": "-",  # an object, which is read as its fields
    "whose names the cluster does not know": "refused: an enum without names",
    "which is not registered in the cluster": "refused: the cluster does not tell Ignite's own types",
    "another type in": "refused: rows of several types",
    "not found": "refused: the nodes have no such table",
    "Value conversion failed": "refused: the node converts no such value",
}
_UNIX_DAY_MS = 86_400_000


def measured(client: Client, options: ConnectOptions, java: Java) -> str:
    """Read all values in every way, write them back and have Java compare them. Returns the document.

    Raises:
        AssertionError: A value silently differs from Java's.
    """
    sql, cells = SqlClient(options), {}
    for case in java.cases:
        for place in PLACES if case.is_key else [each for each in PLACES if each != "key"]:
            cells[case.name, place, "scan"] = _scan_cell(client, case, place)
            cells[case.name, place, "SQL"] = _sql_cell(sql, case, place)
            cells[case.name, place, "dataset"] = _dataset_cell(options.endpoints[0], case, place)
            cells[case.name, place, "text"] = _text_cell(options.endpoints[0], case, place)
            cells[case.name, place, "write"] = _write(client, case, place)
    of_name = {case.name: case for case in java.cases}
    for key, found in java.check().items():
        name, place, number = key.rsplit("/", 2)
        if found is not None:
            told = _expected(of_name[name], place)[int(number)]
            assert found.startswith("["), f"{key}: {found}"
            assert alike(_classless(json.loads(found)), _classless(told)), f"{key} was {told} and is {found}"
            cells[name, place, "write"] = _AS_OBJECTS
    return _document(java.cases, cells)


def values_at(client: Client, case: Case, place: str) -> list[Any]:
    """Return the values of a place as the client reads them. Bare keys and values are in no particular order."""
    if place in ("key", "value"):
        rows = list(all_rows(client.cache(case.plain)))
        if not case.is_key:
            rows.sort()
        return [key if place == "key" else value for key, value in rows]
    of_number = {int(number): row.fields[place] for number, row in all_rows(client.cache(case.rows))}
    assert of_number.pop(len(case.values)) is None, f"{case.name}: {place} of the row of nulls"
    found = [of_number[number] for number in range(len(case.values))]
    return [each.fields["inner"] for each in found] if place == "nested" else found


def _expected(case: Case, place: str) -> list[Any]:
    if place == "elements":
        return [["array", "java.lang.Object", [told, None]] for told in case.values]
    return case.values


def _scan_cell(client: Client, case: Case, place: str) -> str:
    found = values_at(client, case, place)
    cells = []
    for told in _expected(case, place):
        fitting = [cell for value in found if (cell := _how(value, told))]
        assert fitting, f"{case.name}, {place}: Java put {told}, the scan gave {[*map(described, found)]}"
        cells.append("exact" if "exact" in fitting else fitting[0])
    return next((cell for cell in cells if cell != "exact"), "exact")


def _how(value: Any, told: Any) -> str | None:
    """Say how exactly a value matches Java's. Returns None if it is another value."""
    found = _with_classes(described(value))
    if alike(found, told):
        return "exact"
    if any(each.raw for each in objects_in(value)):
        return _RAW
    if '"java"' in json.dumps(found, default=repr):
        return _SERIALISED
    return _AS_OBJECTS if alike(_classless(found), _classless(told)) else None


def _with_classes(told: Any) -> Any:
    """Replace type ids of arrays by class names."""
    if isinstance(told, dict):
        return {key: _with_classes(each) for key, each in told.items()}
    if not isinstance(told, list):
        return told
    if told[:1] == ["array"] and str(told[1]).startswith("type "):
        names = {**{name_id(name): name for name in _CLASSES}, 3: "java.lang.Integer"}
        told = ["array", names.get(int(told[1][5:]), told[1]), told[2]]
    return [_with_classes(each) for each in told]


def _classless(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _classless(each) for key, each in told.items()}
    if not isinstance(told, list):
        return told
    if told[:1] == ["array"]:
        told = ["array", "", told[2]]
    return [_classless(each) for each in told]


def _write(client: Client, case: Case, place: str) -> str:
    """Write the values back under keys "type/place/number". Of a row, write one field, to get a new schema."""
    back = client.cache("BACK")
    found = values_at(client, case, place)
    rows = {int(number): row for number, row in all_rows(client.cache(case.rows))}
    for number, told in enumerate(_expected(case, place)):
        value = (
            next(each for each in found if _how(each, told) == "exact")
            if case.is_key and place in ("key", "value")
            else found[number]
        )
        name = f"{case.name}/{place}/{number}"
        if place == "key":
            assert described(client.cache(case.plain).get(value)) == described(value), (
                f"{name} is not found by its key"
            )
            back.put(value, name)
        elif place == "value":
            back.put(name, value)
        else:
            back.put(name, replace(rows[number], fields={place: rows[number].fields[place]}))
    return "exact"


def _sql_cell(sql: SqlClient, case: Case, place: str) -> str:
    plain = place in ("key", "value")
    column = {"key": "_KEY", "value": "_VAL"}.get(place, place.upper())
    table = f'"{(case.plain if plain else case.rows).upper()}".{"PLAIN" if plain else "ROW"}'
    try:
        found = [value for (value,) in sql.query(f"SELECT {column} FROM {table}").rows]
    except IgniteTfError as error:
        return _reason(error)
    assert plain or sum(value is None for value in found) == 1, f"{case.name}, {place}: the nulls of {found}"
    if plain and len(found) < len(case.values):
        return "only rows of the table's own type"
    kinds = {
        "list" if isinstance(value, list) else type(value).__name__ for value in found if value is not None
    }
    as_what = f"as {', '.join(sorted(kinds))}"
    if any(each.raw for value in found for each in objects_in(value)):
        return as_what
    if any(_how(value, told) == _SERIALISED for value in found for told in case.values if value is not None):
        return _SERIALISED
    expected = [_loosely(told) for told in _expected(case, place)]
    given = [_loose(value) for value in found]
    missing = [told for told in expected if not any(alike(value, told) for value in given)]
    assert missing in ([], [["number", "-0.0"]]), f"{case.name}, {place}: SQL gave {found} without {missing}"
    return as_what + ("; 0.0 for -0.0" if missing else "")


def _loose(value: Any) -> Any:
    """Describe a value from SQL or a dataset without its Java type."""
    if isinstance(value, np.datetime64):
        return ["instant", str(value.astype("M8[us]"))]
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return ["day", value.isoformat()]
    return _loosely(_with_classes(described(value)))


def _loosely(told: Any) -> Any:
    """Leave out what Python's own types cannot express."""
    if isinstance(told, dict):
        return {key: _loosely(each) for key, each in told.items()}
    if not isinstance(told, list) or not told:
        return told
    kind = told[0]
    if kind in ("byte", "short", "int", "long", "enum"):
        return ["number", told[-1]]
    if kind in ("float", "double"):
        form, wide = ("<I", "<f") if kind == "float" else ("<Q", "<d")
        return ["number", repr(struct.unpack(wide, struct.pack(form, int(told[1], 16)))[0])]
    if kind == "char":
        return ["text", chr(told[1])]
    if kind in ("date", "timestamp"):
        nanos = told[2] if kind == "timestamp" else 0
        return ["instant", str(np.datetime64(told[1] * 1000 + nanos // 1000, "us"))]
    if kind == "sql date":
        return ["day", date_of_java(told[1] // _UNIX_DAY_MS).isoformat()]
    if kind == "time":
        return ["time", told[1] % _UNIX_DAY_MS]
    if kind == "array":
        told = ["array", "", told[2]]
    return [_loosely(each) for each in told]


def _dataset_cell(endpoint: Endpoint, case: Case, place: str) -> str:
    plain = place in ("key", "value")
    options = read_options(
        case.plain if plain else case.rows,
        host=endpoint.host,
        port=endpoint.port,
        assigned=False,
        fields=None if plain else [{"nested": "nested.inner"}.get(place, place)],
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            batches = list(Batches(options, 64, 0, None, EqualSteps.PAD))
        except IgniteTfError as error:
            return _reason(error)
    found = [row for batch in batches for row in _rows(batch, place)]
    if not found:
        return "no columns"
    kind = found[0][0]
    values = [] if kind.startswith("columns") else [_listed(item) for _, item in found]
    for told in _expected(case, place) if values else ():
        assert any(alike(value, _as_item(told)) for value in values), (
            f"{case.name}, {place}: {told}, {values}"
        )
    nulls = [is_null for batch in batches for is_null in _nulls(batch, place)]
    assert sum(nulls) == any(nulls), f"{case.name}, {place}: the nulls of {found}"
    left_out = any("these fields are left out" in str(each.message) for each in warned)
    as_what = f"as {kind.replace('columns none', 'no columns')}"
    of_null = "; a null is 0, marked by a boolean column" if nulls else ""
    return f"{as_what}{of_null}{'; other fields left out' if left_out else ''}"


def _text_cell(endpoint: Endpoint, case: Case, place: str) -> str:
    plain = place in ("key", "value")
    name = {"value": "val", "nested": "nested.inner"}.get(place, place)
    options = read_options(
        case.plain if plain else case.rows,
        host=endpoint.host,
        port=endpoint.port,
        assigned=False,
        fields=None if plain else [name],
        as_text=["key", "val"] if plain and case.is_key else [name],
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other fields that are left out
            batches = list(Batches(options, 64, 0, None, EqualSteps.PAD))
    except IgniteTfError as error:
        return _reason(error)
    items = [item for batch in batches for _, item in _rows(batch, place)]
    assert all(isinstance(item, bytes) for item in items), f"{case.name}, {place}: {items}"
    found = [item.decode("utf-8", "surrogatepass") for item in items]
    expected = [*map(_text_of, case.values), *([] if plain else [""])]
    assert sorted(found) == sorted(expected), f"{case.name}, {place}: {found}, {expected}"
    return "exact"


def _text_of(told: Any) -> str:
    """Return the text that `value_texts.text_of` must produce for Java's value."""
    kind, value = told[0], told[-1]
    if kind in ("date", "timestamp"):
        return str(np.datetime64(told[1], "ms")) + f"{told[2] if kind == 'timestamp' else 0:06d}"
    if kind in ("float", "double"):
        wide, item = ("<I", "<f4") if kind == "float" else ("<Q", "<f8")
        return str(np.frombuffer(struct.pack(wide, int(value, 16)), item)[0])
    if kind == "time":
        return str(np.datetime64(value % _UNIX_DAY_MS, "ms")).partition("T")[2]
    made = {
        "boolean": lambda: str(value).lower(),
        "char": lambda: chr(value),
        "enum": lambda: told[2],
        "decimal": lambda: format(decimal.Decimal(f"{told[1]}E{-told[2]}"), "f"),
        "sql date": lambda: date_of_java(value // _UNIX_DAY_MS).isoformat(),
    }
    return str(made[kind]() if kind in made else value)


def _listed(item: Any) -> Any:
    """Return a dataset's value as lists, with floating-point numbers as hexadecimal bits."""
    if isinstance(item, tuple):
        return [_listed(each) for each in item]
    array = np.asarray(item)
    if isinstance(item, bytes) or array.dtype == np.uint8:
        return bytes(item).decode("latin-1")
    if array.dtype == object:
        return [_listed(each) for each in array]
    if array.dtype.kind == "f":
        return [format(each, "x") for each in array.reshape(-1).view(f"<u{array.dtype.itemsize}").tolist()]
    return array.reshape(-1).tolist()


def _as_item(told: Any) -> Any:
    """Return the value that a dataset must have for Java's value."""
    kind = told[0]
    if kind == "map":
        return [_as_item(["collection", "", list(each)]) for each in zip(*told[2], strict=True)]
    if kind == "collection" or (kind == "array" and any(isinstance(each, list) for each in told[2])):
        nothing = {"float": "7fc00000", "double": "7ff8000000000000", "decimal": "7ff8000000000000"}
        other = next(each for each in told[2] if each)
        is_list = other[0] in ("array", "collection") and other[1] != "byte"
        of_null = nothing.get(other[0], "" if other[0] in ("text", "uuid", "array") else 0)
        items = [([] if is_list else of_null) if each is None else _as_item(each) for each in told[2]]
        return items if is_list else [each[0] if isinstance(each, list) else each for each in items]
    if kind in ("text", "uuid"):
        return told[1].encode().decode("latin-1")
    if kind == "decimal":
        real = float(decimal.Decimal(int(told[1])).scaleb(-told[2]))
        return [format(struct.unpack("<Q", struct.pack("<d", real))[0], "x")]
    if kind in ("date", "timestamp"):
        return [told[1] * 1_000_000 + (told[2] if kind == "timestamp" else 0)]
    if kind == "array":
        return np.array(told[2], np.int8).tobytes().decode("latin-1") if told[1] == "byte" else told[2]
    return [told[-1]]


def _nulls(batch: dict[str, Any], place: str) -> Iterator[bool]:
    """Yield a field's null flags, if the batch has any."""
    if place in ("field", "nested"):
        within = batch["val"]["nested"] if place == "nested" else batch["val"]
        yield from within.get(f"{'inner' if place == 'nested' else 'field'}_is_null", ())


def _rows(batch: dict[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    column = batch["key"] if place == "key" else batch["val"]
    for name in ("nested", "inner") if place == "nested" else () if place in ("key", "value") else (place,):
        if name not in column and f"{name}_keys" not in column:
            yield f"columns {', '.join(each for each in column if each.startswith(f'{name}_'))}", column
            return
        if name not in column:
            keys, values = column[f"{name}_keys"], column[f"{name}_values"]
            kind = f"{_kind(keys)}, and {_kind(values)}"
            yield from ((kind, pair) for pair in zip(keys, values, strict=True))
            return
        column = column[name]
    if isinstance(column, dict):
        yield f"columns {', '.join(column) or 'none'}", column
        return
    for item in column:
        yield _kind(column), item


def _kind(column: Any) -> str:
    if column.dtype != object:
        return str(column.dtype)
    items = list(column)
    while isinstance(items[0], np.ndarray) and items[0].dtype == object:
        items = [item for each in items for item in each]
    ragged = "" if isinstance(column[0], bytes) else ", ragged"
    return f"{'bytes' if isinstance(items[0], bytes) else items[0].dtype}{ragged}"


def _reason(error: Exception) -> str:
    found = [cell for words, cell in _REASONS.items() if words in str(error)]
    assert found, f"{type(error).__name__}: {error}"
    return found[0]


def _document(cases: Sequence[Case], cells: dict[tuple[str, str, str], str]) -> str:
    lines = [_HEAD]
    for case in cases:
        by_cells: dict[tuple[str, ...], list[str]] = {}
        for place in PLACES:
            if (case.name, place, "scan") in cells:
                ways = tuple(
                    cells[case.name, place, way] for way in ("scan", "SQL", "write", "dataset", "text")
                )
                by_cells.setdefault(ways, []).append(place)
        for ways, places in by_cells.items():
            lines.append(f"| {case.name} | {', '.join(places)} | {' | '.join(ways)} |")
    return "\n".join(lines) + "\n"


_HEAD = """# Types

This page shows how each type that Java can put into a cluster is read and written. A Java program
has filled a cluster with the values (`tests/client/java/FillTypes.java`). `make types` reads them
in every way and writes this page. `tests/client/test_java_types.py` fails if the page is out of
date, or if a value differs from Java's.

The columns of the table:

- **place**: where the value is: the *value* or *key* of a row; a *field* of an object; *nested*, a
  field of an object in an object; *elements*, an item of an Object[].
- **scan**: `Cache.get`, `get_all` and `client.all_rows` read it. "exact": the value, its Java type,
  its nulls, what it contains and what it refers to are the same.
- **SQL**: the Python type in `session.query(...).rows`.
- **write**: `Cache.put` writes what was read under another key. "exact": Java reads it as it reads
  its own value.
- **dataset**: the dtype in `IgniteDataset` and `batches`; all values are Java's. "as columns a, b":
  each field of the object is a column.
- **as text**: the same with `as_text=`. "exact": the text shows all of Java's value. "-": the type
  has no text.

A value that was read knows its Java type (`protocol/typed_values.py`). In all else it is one of
Python's own types:

- a Java int is an `Int`, which is an int;
- a `Timestamp` is a datetime with `nanosecond`;
- an enum is an int with `name`;
- a collection is a list, and a map is a list of pairs;
- objects that refer to themselves or to one another do so in Python, too;
- values of classes that Java serialises in its own way are bytes (`JavaSerialized`).

Some names of types:

- *of no class*: made with Ignite's builders, without a Java class;
- *Binarylizable, raw*: its class writes all of it in a form of its own; *raw behind fields*: a part
  of it, after the fields;
- *of some size*: objects of 300 and of 70,000 bytes;
- *in a circle*: two objects that refer to each other; *that has one twice*: it refers to another
  object twice;
- *full footer*: written with `compactFooter=false`.

| type | place | scan | SQL | write | dataset | as text |
|---|---|---|---|---|---|---|"""


def main() -> None:
    import tempfile

    from ignite_tf_magic.client.client import connect
    from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up

    home = Path(tempfile.mkdtemp())
    cluster = ensure_up(EmbeddedOptions(num_nodes=1, heap=HEAP), Lifetime.UNTIL_DOWN, home=home).cluster
    java = Java(cluster.connect_options.endpoints[0])
    try:
        with connect(cluster.connect_options) as client:
            DOCUMENT.write_text(measured(client, cluster.connect_options, java))
    finally:
        java.close()
        down(home, delete_data=True)


if __name__ == "__main__":
    main()
