"""Reads Parquet files and Arrow tables as batches, repeatedly, and never a whole file into memory."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ignite_tf_magic.data.arrow_columns import batch_of
from ignite_tf_magic.data.columns import CHUNK_ROWS, Batch
from ignite_tf_magic.errors import SourceError


def parquet_batches(path: Path) -> Callable[[], Iterator[Batch]]:
    """Return a function that reads a Parquet file, or a folder of them, from the first row.

    Parts of a folder's names such as `year=2020` become columns, as in Hive. A column that is missing or all null in
    one file gets the type that it has in others.

    Raises:
        SourceError: The file cannot be read.
    """

    def read() -> Iterator[Batch]:
        import pyarrow as pa

        try:
            for batch in _parquet(path).to_batches(
                batch_size=CHUNK_ROWS, batch_readahead=1, fragment_readahead=1
            ):
                if batch.num_rows:
                    yield batch_of(batch)
        except SourceError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SourceError(f"cannot read {str(path)!r} as parquet: {error}") from error

    return read


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    how: dict[str, Any] = {"format": "parquet", "partitioning": "hive" if path.is_dir() else None}
    found = ds.dataset(path, **how)
    schemas = [part.physical_schema for part in found.get_fragments()]
    common = pa.unify_schemas([*schemas, found.schema], promote_options="permissive")
    return ds.dataset(path, schema=common, **how)


def arrow_batches(source: Any) -> Callable[[], Iterator[Batch]]:
    """Return a function that reads an Arrow table, batch or reader, or an object that exports one, from the first row.

    A reader yields its rows only once. So they are kept in a file, which is removed together with the function.
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

    file = tempfile.TemporaryFile()  # noqa: SIM115  closed and removed with `read`
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
    """Return a function that reads a Hugging Face data set from the first row."""
    arrow = dataset.with_format("arrow")
    return lambda: (batch_of(table) for table in arrow.iter(CHUNK_ROWS // 4))
