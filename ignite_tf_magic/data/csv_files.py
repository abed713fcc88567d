"""Reads files of separated values as batches, repeatedly, and never a whole file into memory.

pyarrow reads the file. This module decides what the text of a cell means. Whole numbers stay whole and are never
rounded. In text columns only unquoted empty cells, and words named in the options, mean a missing value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ignite_tf_magic.data.columns import Batch, SourceColumn, primitive, unique_names
from ignite_tf_magic.data.scalars import NUMBERS
from ignite_tf_magic.data.text_files import UNREADABLE, TextFormat, encoding_hint, first_line, open_bytes
from ignite_tf_magic.data.values import column_of
from ignite_tf_magic.errors import SourceError

_BLOCK_BYTES = 4 << 20
_MAX_BLOCK_BYTES = 1 << 30
# Applies to columns of numbers and times; in a text column "NA" can mean Namibia.
_MISSING_NUMBERS = ("", "NA", "N/A", "#N/A", "<NA>", "n/a", "NULL", "null", "None", "NaN", "nan")
_WHOLE = r"^[+-]?[0-9]+$"
_CODE = r"^[+-]?0[0-9]"  # a postal code, product or phone number; as a number it would lose zeros
_LONG_WHOLE = r"^[+-]?[0-9]{16,400}$"  # floats cannot represent all of these
_TRUTH = r"(?i)^(true|false)$"
_WITH_COMMA = r"^[+-]?[0-9]+(,[0-9]+)?$"
_CASTS = {"int": "int64", "float": "double", "bool": "bool", "float64": "double", "float32": "float"}
_QUOTED = re.compile('"[^"]*"')
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")


class CsvFile:
    """A file of separated values.

    Args:
        path: The file.
        text_format: How to read the file.
        report: Called with a line about each automatic decision and the option that changes it.

    Attributes:
        bad_lines: Line -> the reason why it is not a row, as far as the file was read.

    Raises:
        SourceError: The file cannot be read, or its first line seems to be a row.
    """

    def __init__(self, path: Path, text_format: TextFormat, report: Callable[[str], None]) -> None:
        self._path, self._format, self._report = path, text_format, report
        self._block_bytes = _BLOCK_BYTES
        self.bad_lines: dict[int, str] = {}
        with self._readable():
            self._separator = text_format.separator or self._find_separator()
        while True:
            try:
                self._look()
                return
            except SourceError as error:  # a row is longer than a block
                if "straddling" not in str(error) or self._block_bytes >= _MAX_BLOCK_BYTES:
                    raise
                self._block_bytes *= 16

    def batches(self) -> Iterator[Batch]:
        """Yield all rows in batches, from the first row."""
        for texts in self._texts():
            yield {name: self._typed(name, texts[name], self._kinds[name]) for name in self._names}

    def _find_separator(self) -> str:
        line = _QUOTED.sub("", first_line(self._path, self._format.encoding))
        found = next((each for each in "\t;" if each in line), ",")
        if found != ",":
            self._report(f"{self._path.name}: columns are separated by {found!r}; --separator changes that")
        return found

    def _look(self) -> None:
        """Find the names and kinds of the columns."""
        self.bad_lines.clear()
        with self._readable(), self._open({}) as reader:
            self._raw_names = reader.schema.names
        self._names = self._find_names()
        if unknown := [name for name in self._format.kinds if name not in self._names]:
            raise SourceError(
                f"{str(self._path)!r} has no column {unknown[0]!r}; it has {', '.join(self._names)}"
            )
        self._kinds = self._find_kinds()

    def _find_names(self) -> list[str]:
        names = [name.strip() for name in self._raw_names]
        if self._format.header is None and not self._format.names:
            number = next((name for name in names if _NUMBER.fullmatch(name)), None)
            if number is not None:
                raise SourceError(
                    f"the first line of {str(self._path)!r} seems to be a row: a column would be called {number!r}. "
                    "Pass --no-header (or --names NAME,NAME,...), or --header if it holds the names"
                )
        # The name that pandas gives to an index that its to_csv() wrote without a name.
        return unique_names([name or f"Unnamed: {position}" for position, name in enumerate(names)])

    @contextmanager
    def _open(self, kinds: Mapping[str, Any]) -> Iterator[Any]:
        from pyarrow import csv

        asked = self._format
        has_header = asked.header if asked.header is not None else not asked.names
        with (
            open_bytes(self._path) as file,
            csv.open_csv(
                file,
                csv.ReadOptions(
                    block_size=self._block_bytes,
                    encoding=asked.encoding,
                    use_threads=False,
                    column_names=list(asked.names) or None,
                    skip_rows_after_names=int(has_header and bool(asked.names)),
                    autogenerate_column_names=not has_header and not asked.names,
                ),
                csv.ParseOptions(
                    delimiter=self._separator, newlines_in_values=True, invalid_row_handler=self._note
                ),
                csv.ConvertOptions(
                    column_types=kinds,
                    null_values=["", *asked.na],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            ) as reader,
        ):
            yield reader

    def _note(self, row: Any) -> str:
        number = row.number if row.number is not None else -1 - len(self.bad_lines)
        self.bad_lines[number] = (
            f"{row.actual_columns} values, where {row.expected_columns} are expected: {row.text[:60]!a}"
        )
        return "skip"

    @contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except SourceError:
            raise
        except (pa.ArrowException, TypeError, *UNREADABLE) as error:
            raise SourceError(
                f"cannot read {str(self._path)!r} as separated values: {error}{encoding_hint(self._path, error)}"
            ) from error

    def _texts(self) -> Iterator[Mapping[str, Any]]:
        import pyarrow as pa

        with self._readable(), self._open(dict.fromkeys(self._raw_names, pa.string())) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield {name: batch.column(number) for number, name in enumerate(self._names)}

    def _find_kinds(self) -> dict[str, str]:
        possible = {name: ["int", "float", "bool"] for name in self._names if name not in self._format.kinds}
        has_values = set()
        has_commas: dict[str, bool] = {}
        for texts in self._texts():
            for name, kinds in possible.items():
                values = self._numbers_of(texts[name]).drop_null()
                if not len(values):
                    continue
                has_values.add(name)
                possible[name] = [kind for kind in kinds if _may_be(kind, values)]
                if not possible[name]:
                    has_commas[name] = has_commas.get(name, True) and _may_have_decimal_commas(values)
        for name in (name for name, is_so in has_commas.items() if is_so):
            self._report(
                f"column {name!r} of {self._path.name} is text; if its commas are decimal points: --decimal ','"
            )
        found = {
            name: next(iter(kinds), "text") if name in has_values else "text"
            for name, kinds in possible.items()
        }
        return {**found, **self._format.kinds}

    def _numbers_of(self, texts: Any) -> Any:
        """Return the texts of numbers with a decimal point, and nulls for missing values."""
        import pyarrow.compute as pc

        values = _present(texts)
        if self._format.decimal != ".":  # swapped, so that a number with a point is not accepted
            for old, new in ((".", "\0"), (self._format.decimal, "."), ("\0", self._format.decimal)):
                values = pc.replace_substring(values, old, new)
        return values

    def _typed(self, name: str, texts: Any, kind: str) -> SourceColumn:
        """Convert a column of texts to one kind. Texts that do not fit the kind are rejected."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if kind == "text":
            return column_of(name, texts.to_pylist(), kind)
        if kind not in (*NUMBERS, "decimal"):
            return column_of(name, _present(texts).to_pylist(), kind, parse=True)
        values = self._numbers_of(texts)
        target = _CASTS.get(kind, kind if kind.startswith("int") else None)
        if target is None:
            return column_of(name, values.to_pylist(), kind, parse=True)
        try:
            numbers = _unsigned(values).cast(target)
        except pa.ArrowInvalid:
            return column_of(name, values.to_pylist(), kind, parse=True)
        if kind.startswith("float") and (
            pc.any(pc.match_substring_regex(values, _LONG_WHOLE)).as_py()
            or pc.any(pc.is_inf(numbers)).as_py()
        ):
            return column_of(name, _with_whole_numbers(values.to_pylist()), kind, parse=True)
        nulls = np.asarray(numbers.is_null().to_numpy(zero_copy_only=False))
        fill = float("nan") if kind.startswith("float") else False if kind == "bool" else 0
        return primitive(name, np.asarray(numbers.fill_null(fill).to_numpy(zero_copy_only=False)), nulls)


def _present(texts: Any) -> Any:
    """Strip blanks around texts, and return nulls for texts that mean a missing number or time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(texts)
    gone = pc.is_in(trimmed, value_set=pa.array(_MISSING_NUMBERS))
    return pc.if_else(gone, pa.scalar(None, pa.string()), trimmed)


def _may_be(kind: str, values: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind != "bool" and pc.any(pc.match_substring_regex(values, _CODE)).as_py():
        return False
    if kind != "float":
        matches = pc.match_substring_regex(values, _WHOLE if kind == "int" else _TRUTH)
        return bool(pc.all(matches).as_py())
    try:
        _unsigned(values).cast("double")
    except pa.ArrowInvalid:
        return False
    return True


def _may_have_decimal_commas(values: Any) -> bool:
    import pyarrow.compute as pc

    has_any = pc.any(pc.match_substring(values, ",")).as_py()
    return bool(has_any and pc.all(pc.match_substring_regex(values, _WITH_COMMA)).as_py())


def _unsigned(values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.replace_substring_regex(values, r"^\+([0-9.])", r"\1")


def _with_whole_numbers(texts: Sequence[str | None]) -> list[str | int | None]:
    """Return texts of long whole numbers as integers, so that none is rounded silently."""
    return [int(text) if text is not None and re.match(_LONG_WHOLE, text) else text for text in texts]
