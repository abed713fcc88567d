"""Files of text and parquet, and Arrow's tables, as batches: read again and again, and never all of it in memory.

Reading is pyarrow's; what a cell of text means is decided here: whole numbers stay whole and are never rounded, and no
text is taken for a missing value unless that was asked for.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ignite_tf_magic.data.arrow_columns import batch_of
from ignite_tf_magic.data.columns import CHUNK_ROWS, Batch, SourceColumn, primitive, unique_names
from ignite_tf_magic.data.values import column_of
from ignite_tf_magic.errors import SourceError

_BLOCK_BYTES = 4 << 20
# In columns of numbers and times; a text says "NA" where it means Namibia.
_MISSING_NUMBERS = ("", "NA", "N/A", "#N/A", "<NA>", "n/a", "NULL", "null", "None", "NaN", "nan")
_WHOLE = r"^[+-]?[0-9]+$"
_CODE = r"^[+-]?0[0-9]"  # of a place, a product, a telephone: a number would lose its zeros
_LONG_WHOLE = r"^[+-]?[0-9]{16,400}$"  # floats leave some of these out
_TRUTH = r"(?i)^(true|false)$"
_CASTS = {"int": "int64", "float": "double", "bool": "bool", "float64": "double", "float32": "float"}


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a file of text is to be read.

    Attributes:
        separator: Between the columns of a csv file.
        kinds: SourceColumn -> its kind, where that is not to be found out.
        na: Words that stand for a missing value in any column of a csv file.
        encoding: Of the file.
    """

    separator: str = ","
    kinds: Mapping[str, str] = field(default_factory=dict)
    na: Sequence[str] = ()
    encoding: str = "utf-8"


class CsvFile:
    """A file of separated values, with the columns' names in its first line.

    Attributes:
        bad_lines: Line -> why it is no row, as far as the file was read.

    Raises:
        SourceError: It cannot be read.
    """

    def __init__(self, path: Path, text_format: TextFormat) -> None:
        self._path, self._format = path, text_format
        self.bad_lines: dict[int, str] = {}
        with self._readable(), self._open({}) as reader:
            self._names = unique_names(reader.schema.names)
        if unknown := [name for name in text_format.kinds if name not in self._names]:
            raise SourceError(f"{str(path)!r} has no column {unknown[0]!r}; it has {', '.join(self._names)}")
        self._kinds = self._find_kinds()

    def batches(self) -> Iterator[Batch]:
        """Read it from the first row."""
        for texts in self._texts():
            yield {name: _typed(name, texts[name], self._kinds[name]) for name in self._names}

    def _open(self, kinds: Mapping[str, Any]) -> Any:
        from pyarrow import csv

        return csv.open_csv(
            self._path,
            csv.ReadOptions(block_size=_BLOCK_BYTES, encoding=self._format.encoding, use_threads=False),
            csv.ParseOptions(
                delimiter=self._format.separator, newlines_in_values=True, invalid_row_handler=self._note
            ),
            csv.ConvertOptions(
                column_types=kinds,
                null_values=["", *self._format.na],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

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
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
            hint = (
                "; say its encoding: --encoding latin-1"
                if "UTF8" in str(error) or "codec" in str(error)
                else ""
            )
            raise SourceError(
                f"cannot read {str(self._path)!r} as separated values: {error}{hint}"
            ) from error

    def _texts(self) -> Iterator[Any]:
        import pyarrow as pa

        with self._readable(), self._open(dict.fromkeys(self._names, pa.string())) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield {name: batch.column(number) for number, name in enumerate(self._names)}

    def _find_kinds(self) -> dict[str, str]:
        possible = {name: ["int", "float", "bool"] for name in self._names if name not in self._format.kinds}
        has_values = set()
        for texts in self._texts():
            for name, kinds in possible.items():
                values = _numbers_of(texts[name]).drop_null()
                if len(values):
                    has_values.add(name)
                    possible[name] = [kind for kind in kinds if _may_be(kind, values)]
        found = {
            name: next(iter(kinds), "text") if name in has_values else "text"
            for name, kinds in possible.items()
        }
        return {**found, **self._format.kinds}


def _numbers_of(texts: Any) -> Any:
    """Return texts as numbers are written, with nulls where they stand for none."""
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


def _unsigned(values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.replace_substring_regex(values, r"^\+([0-9.])", r"\1")


def _typed(name: str, texts: Any, kind: str) -> SourceColumn:
    """Return a column of texts as one of a kind; what is none of it is rejected."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "text":
        return column_of(name, texts.to_pylist(), kind)
    values = _numbers_of(texts)
    if (target := _CASTS.get(kind, kind if kind.startswith("int") else None)) is not None:
        try:
            numbers = _unsigned(values).cast(target)
        except pa.ArrowInvalid:
            return column_of(name, values.to_pylist(), kind, parse=True)
        if kind.startswith("float") and pc.any(pc.match_substring_regex(values, _LONG_WHOLE)).as_py():
            return column_of(name, _with_whole_numbers(values.to_pylist()), kind, parse=True)
        nulls = np.asarray(numbers.is_null().to_numpy(zero_copy_only=False))
        fill = float("nan") if kind.startswith("float") else False if kind == "bool" else 0
        return primitive(name, np.asarray(numbers.fill_null(fill).to_numpy(zero_copy_only=False)), nulls)
    return column_of(name, values.to_pylist(), kind, parse=True)


def _with_whole_numbers(texts: Sequence[str | None]) -> list[str | int | None]:
    """Return texts that are whole numbers as such, so that none is rounded unsaid."""
    return [int(text) if text is not None and re.match(_LONG_WHOLE, text) else text for text in texts]


def parquet_batches(path: Path) -> Callable[[], Iterator[Batch]]:
    """Return what reads a Parquet file from the first row.

    Raises:
        SourceError: It cannot be read.
    """

    def read() -> Iterator[Batch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(CHUNK_ROWS):
                    yield batch_of(batch)
        except SourceError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SourceError(f"cannot read {str(path)!r} as parquet: {error}") from error

    return read


def arrow_batches(source: Any) -> Callable[[], Iterator[Batch]]:
    """Return what reads an Arrow table, batch or reader, or what gives one, from the first row.

    A reader gives its rows once only: they are kept in a file that is removed with what reads it.
    """
    import pyarrow as pa

    if isinstance(source, pa.RecordBatchReader):
        return _kept(source)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    table = source if isinstance(source, pa.Table) else pa.table(source)
    return lambda: (batch_of(batch) for batch in _cut(table.to_batches(CHUNK_ROWS)))


def _cut(batches: Sequence[Any]) -> Iterator[Any]:
    return (batch for batch in batches if batch.num_rows)


def _kept(reader: Any) -> Callable[[], Iterator[Batch]]:
    import pyarrow as pa

    file = tempfile.TemporaryFile()  # noqa: SIM115  closed with what reads it, and then gone
    with pa.ipc.new_file(pa.PythonFile(file, "w"), reader.schema) as writer:
        for batch in reader:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                writer.write_batch(batch.slice(first, CHUNK_ROWS))

    def read() -> Iterator[Batch]:
        kept = pa.ipc.open_file(pa.PythonFile(file, "r"))
        return (batch_of(kept.get_batch(number)) for number in range(kept.num_record_batches))

    weakref.finalize(read, file.close)
    return read


def dataset_batches(dataset: Any) -> Callable[[], Iterator[Batch]]:
    """Return what reads a data set of Hugging Face's from the first row."""
    arrow = dataset.with_format("arrow")
    return lambda: (batch_of(table) for table in arrow.iter(CHUNK_ROWS // 4))
