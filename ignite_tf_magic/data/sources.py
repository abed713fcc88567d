"""Reads training data from files, frames, arrays and well-known data sets as columns, chunk by chunk.

pandas, pyarrow, scikit-learn and TensorFlow are imported only by the readers that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ignite_tf_magic.data.array_files import KNOWN_SOURCES, read_named, refuse_split, split_arrays
from ignite_tf_magic.data.arrays import array_batch, as_arrays, is_frame
from ignite_tf_magic.data.checked_rows import CheckedRows, Read
from ignite_tf_magic.data.columns import Batch, chunks_of, unique_names
from ignite_tf_magic.data.csv_files import CsvFile
from ignite_tf_magic.data.frames import frame_columns
from ignite_tf_magic.data.records import element_arrays, json_records, record_batches
from ignite_tf_magic.data.scalars import KINDS
from ignite_tf_magic.data.tables import arrow_batches, dataset_batches, parquet_batches
from ignite_tf_magic.data.text_files import TextFormat, content_suffix
from ignite_tf_magic.errors import SourceError

_CSV_SUFFIXES = (".csv", ".tsv", ".data")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_INDEXES = ("Unnamed: 0", "__index_level_0__")  # pandas' names for an index in .csv and .parquet files
_SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to load from a source, and how to read it.

    Attributes:
        key: Columns whose values become the keys. If empty, rows are numbered.
        split: "train" or "test". None means the training rows if the source is divided, else all rows.
        text: How to read text files.
        rejects: File for the rows that cannot be stored in a cache; if None, such a row is an error.
        keep_nan: Keep NaN among the floats of a pandas frame as a number; otherwise NaN means missing (NULL).
        drop: Columns to leave out.
        report: Called with a line about what is not loaded, or what was detected.
    """

    key: Sequence[str] = ()
    split: str | None = None
    text: TextFormat = field(default_factory=TextFormat)
    rejects: Path | None = None
    keep_nan: bool = False
    drop: Sequence[str] = ()
    report: Callable[[str], None] = lambda _: None


def read_source(source: Any, options: SourceOptions | None = None) -> CheckedRows:
    """Open `source` and check that every row can be stored in a cache.

    Args:
        source: A file or folder (`KNOWN_SOURCES`; text files also compressed, or alone in a .zip), a name ("digits";
            "keras:mnist" and other image data sets of Keras, which are downloaded), a pandas or polars frame, an Arrow
            table, batch or reader, a Hugging Face data set, a finite tf.data.Dataset, a list of dicts, a mapping of
            names to arrays, a pair (features, labels), or one array.
        options: What to load, and how to read it.

    Raises:
        SourceError: The source is missing, unreadable or empty, a column or row cannot be stored in a cache, or two
            rows have the same key.
    """
    options = options or SourceOptions()
    if options.split not in (None, *_SPLITS):
        raise SourceError(f"split {options.split!r} is neither 'train' nor 'test'")
    _check_kinds(options.text)
    name = str(source) if isinstance(source, (str, Path)) else f"the given {type(source).__name__}"
    try:
        read, bad_lines = _opened(source, options)
        key = tuple(map(_sql_name, options.key))
        return CheckedRows(name, _as_asked(read, name, options), key, options.rejects, bad_lines)
    except ModuleNotFoundError as error:
        extra = "tensorflow" if name.startswith("keras:") else "data"
        raise SourceError(
            f"loading {name!r} needs the package {error.name!r}: pip install 'ignite_tf_magic[{extra}]'"
        ) from error


def _check_kinds(text: TextFormat) -> None:
    for name, kind in text.kinds.items():
        if kind not in KINDS:
            raise SourceError(f"column {name!r} cannot be of the type {kind!r}; there are {', '.join(KINDS)}")


def is_source(name: str) -> bool:
    """Return whether a text names a source: a known data set or an existing file."""
    return name == "digits" or name.startswith("keras:") or Path(name).expanduser().exists()


def _opened(source: Any, options: SourceOptions) -> tuple[Read, Mapping[int, str]]:
    """Return a function that reads a source from its first row, and the lines of its file that are not rows."""
    split = options.split
    _refuse_dialect(source, options.text)
    if options.keep_nan and isinstance(source, (str, Path)):
        raise SourceError("--keep-nan is for data frames of pandas; leave it out")
    if isinstance(source, (str, Path)):
        name = str(source)
        if name != "digits" and not name.startswith("keras:"):
            path = _existing_file(name)
            suffix = content_suffix(path)
            if suffix in _CSV_SUFFIXES + _JSON_SUFFIXES:
                refuse_split(split)
                return _text_file(path, suffix, options)
            if path.is_dir() or path.suffix.lower() == ".parquet":
                refuse_split(split)
                return parquet_batches(path), {}
        return _once(array_batch(read_named(name, split))), {}
    read = _given(source, split)
    return read or _once(_batch_of_values(source, options)), {}


def _refuse_dialect(source: Any, text: TextFormat) -> None:
    """Refuse text file options that have no effect on the source."""
    text = replace(text, kinds=dict(text.kinds), na=tuple(text.na), names=tuple(text.names))
    is_file = isinstance(source, (str, Path)) and Path(source).expanduser().is_file()
    suffix = content_suffix(Path(source).expanduser()) if is_file else ""
    kept = text if suffix in _CSV_SUFFIXES else TextFormat()
    if suffix in _JSON_SUFFIXES:
        kept = TextFormat(kinds=text.kinds, encoding=text.encoding)
    if text != kept:
        raise SourceError(
            "a separator, a header, decimals and words for missing values apply only to .csv and .tsv files, types of "
            "columns and an encoding also to files of JSON; leave them out"
        )


def _text_file(path: Path, suffix: str, options: SourceOptions) -> tuple[Read, Mapping[int, str]]:
    text = options.text
    if suffix in _JSON_SUFFIXES:
        return record_batches(lambda: json_records(path, text.encoding), text.kinds), {}
    if suffix == ".tsv":
        text = replace(text, separator=text.separator or "\t")
    file = CsvFile(path, text, options.report)
    return file.batches, file.bad_lines


def _sql_name(name: str) -> str:
    """Replace the characters that SQL column names cannot have: dots, which mean nested fields, and quotes."""
    return name.replace(".", "_").replace('"', "_")


def _as_asked(read: Read, source: str, options: SourceOptions) -> Read:
    """Return a function that reads the columns that are not dropped, with names that SQL allows."""
    told: set[str] = set()

    def renamed() -> Iterator[Batch]:
        for batch in read():
            if unknown := [name for name in options.drop if name not in batch]:
                raise SourceError(f"{source} has no column {unknown[0]!r} to drop; it has {', '.join(batch)}")
            kept = {name: column for name, column in batch.items() if name not in options.drop}
            names = unique_names(list(map(_sql_name, kept)))
            changed = {old: new for old, new in zip(kept, names, strict=True) if old not in (new, *told)}
            for index in {*_INDEXES} & {*names} - told:
                options.report(
                    f"column {index!r} seems to be a frame's index; --drop '{index}' leaves it out"
                )
                told.add(index)
            if changed:
                listed = ", ".join(f"{old} is {new}" for old, new in changed.items())
                options.report(f"columns are renamed, as SQL allows no dots or quotes in names: {listed}")
                told.update(changed)
            yield dict(zip(names, kept.values(), strict=True))

    return renamed


def _once(batch: Batch) -> Read:
    return lambda: chunks_of(batch) if batch else iter([batch])


def _given(source: Any, split: str | None) -> Read | None:
    """Return a function that reads rows that come in batches; None for other values."""
    module = type(source).__module__.partition(".")[0]
    if isinstance(source, Mapping) and any(hasattr(each, "with_format") for each in source.values()):
        part = source.get(split or "train")
        if part is None:
            raise SourceError(
                f"the source has several data sets: {', '.join(map(str, source))}; give one of them"
            )
        return dataset_batches(part)
    if hasattr(source, "with_format") and hasattr(source, "features"):
        refuse_split(split)
        return dataset_batches(source)
    if module == "polars" and hasattr(source, "collect"):
        source = source.collect()
    is_table = module in ("pyarrow", "polars") and hasattr(source, "columns")
    if is_table or hasattr(source, "read_next_batch"):
        refuse_split(split)
        return arrow_batches(source)
    if isinstance(source, (list, tuple)) and source and all(isinstance(each, Mapping) for each in source):
        refuse_split(split)
        return record_batches(lambda: source, {})
    return None


def _batch_of_values(source: Any, options: SourceOptions) -> Batch:
    if is_frame(source):
        refuse_split(options.split)
        return array_batch(frame_columns(source, options.report), keep_nan=options.keep_nan)
    if hasattr(source, "element_spec") and hasattr(source, "as_numpy_iterator"):
        refuse_split(options.split)
        return array_batch(element_arrays(source))
    arrays = split_arrays(as_arrays(source, options.report), options.split)
    return array_batch(arrays, keep_nan=options.keep_nan)


def _existing_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir() and not any(next(path.glob(each), None) for each in ("*.parquet", "*=*")):
        raise SourceError(
            f"cannot load {name!r}: it is a directory without .parquet files; give {KNOWN_SOURCES}"
        )
    if not path.exists():
        raise SourceError(f"cannot load {name!r}: the file does not exist; give {KNOWN_SOURCES}")
    return path
