"""Training data from files, frames, arrays and well-known data sets, as columns that are read chunk by chunk.

pandas, pyarrow, scikit-learn and TensorFlow are imported only by the readers that need them.
"""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data.checked_rows import CheckedRows, Read
from ignite_tf_magic.data.columns import Batch, SourceColumn, chunks_of, primitive
from ignite_tf_magic.data.frames import frame_batch
from ignite_tf_magic.data.records import element_arrays, json_lines, record_batches
from ignite_tf_magic.data.scalars import KINDS
from ignite_tf_magic.data.tables import (
    CsvFile,
    TextFormat,
    arrow_batches,
    dataset_batches,
    parquet_batches,
)
from ignite_tf_magic.data.values import column_of
from ignite_tf_magic.errors import SourceError

Arrays = Mapping[str, Any]

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
_SPLITS = ("train", "test")
_KNOWN = "an .npz, .csv, .tsv, .parquet or .jsonl file, an MNIST IDX file, keras:mnist or digits"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What of a source is loaded, and how it is read.

    Attributes:
        key: Columns whose values become the keys. None: rows are numbered.
        split: "train" or "test"; None is the training rows of a source that comes divided, all rows of one that does
            not.
        text: How files of text are read.
        rejects: File for the rows that have no form; None: one of them is an error.
    """

    key: Sequence[str] = ()
    split: str | None = None
    text: TextFormat = field(default_factory=TextFormat)
    rejects: Path | None = None


def read_source(source: Any, options: SourceOptions | None = None) -> CheckedRows:
    """Open `source` and check that every row of it has a form in a cache.

    Args:
        source: A path (npz, csv, tsv, parquet, jsonl, ndjson; MNIST IDX files, also with .gz: images find their
            labels), a name ("digits"; "keras:mnist" and other image sets of Keras, downloaded), a frame of pandas or
            polars, an Arrow table, batch or reader, a data set of Hugging Face's, a finite tf.data.Dataset, a list of
            dicts, a mapping of names to arrays, a pair (features, labels), or one array.
        options: What is loaded of it, and how it is read.

    Raises:
        SourceError: The source is missing, unreadable, empty, or has a column or a row without a form in a cache, or
            two rows with one key.
    """
    options = options or SourceOptions()
    if options.split not in (None, *_SPLITS):
        raise SourceError(f"split {options.split!r} is neither 'train' nor 'test'")
    _check_kinds(options.text)
    name = str(source) if isinstance(source, (str, Path)) else f"the given {type(source).__name__}"
    try:
        read, bad_lines = _opened(source, options)
        return CheckedRows(name, read, tuple(options.key), options.rejects, bad_lines)
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
    """Tell whether a text names a source: a data set that is known, or a file that is there."""
    return name == "digits" or name.startswith("keras:") or Path(name).expanduser().exists()


def _opened(source: Any, options: SourceOptions) -> tuple[Read, Mapping[int, str]]:
    """Return what reads a source from its first row, and the lines of its file that are no rows."""
    split = options.split
    _refuse_dialect(source, options.text)
    if isinstance(source, (str, Path)):
        name = str(source)
        if name != "digits" and not name.startswith("keras:"):
            path = _existing_file(name)
            if (suffix := path.suffix.lower()) in _TEXT_SUFFIXES:
                _refuse_split(split)
                return _text_file(path, suffix, options.text)
            if suffix == ".parquet":
                _refuse_split(split)
                return parquet_batches(path), {}
        return _once(_array_batch(_read_named(name, split))), {}
    read = _given(source, split)
    return read or _once(_batch_of_values(source, split)), {}


def _refuse_dialect(source: Any, text: TextFormat) -> None:
    """Refuse options of files of text that would do nothing."""
    text = replace(text, kinds=dict(text.kinds), na=tuple(text.na))
    suffix = Path(source).suffix.lower() if isinstance(source, (str, Path)) else ""
    kept = {".csv": text, ".tsv": text}.get(suffix, TextFormat())
    if suffix in (".jsonl", ".ndjson"):
        kept = replace(text, separator=kept.separator, na=kept.na)
    if text != kept:
        raise SourceError(
            "a separator and words for missing values are for .csv and .tsv files, types of columns and an encoding "
            "for .jsonl files as well; leave them out"
        )


def _text_file(path: Path, suffix: str, text: TextFormat) -> tuple[Read, Mapping[int, str]]:
    if suffix in (".csv", ".tsv"):
        file = CsvFile(
            path, replace(text, separator="\t") if suffix == ".tsv" and text.separator == "," else text
        )
        return file.batches, file.bad_lines
    return record_batches(lambda: json_lines(path, text.encoding), text.kinds), {}


def _once(batch: Batch) -> Read:
    return lambda: chunks_of(batch) if batch else iter([batch])


def _given(source: Any, split: str | None) -> Read | None:
    """Return what reads rows that come in batches; None for other values."""
    module = type(source).__module__.partition(".")[0]
    if isinstance(source, Mapping) and any(hasattr(each, "with_format") for each in source.values()):
        part = source.get(split or "train")
        if part is None:
            raise SourceError(f"the given data sets are {', '.join(map(str, source))}; give one of them")
        return dataset_batches(part)
    if hasattr(source, "with_format") and hasattr(source, "features"):
        _refuse_split(split)
        return dataset_batches(source)
    if module == "polars" and hasattr(source, "collect"):
        source = source.collect()
    if (module in ("pyarrow", "polars") and hasattr(source, "__arrow_c_stream__")) or hasattr(
        source, "read_next_batch"
    ):
        _refuse_split(split)
        return arrow_batches(source)
    if module == "pyarrow" and hasattr(source, "__arrow_c_array__") and hasattr(source, "num_columns"):
        _refuse_split(split)
        return arrow_batches(source)
    if isinstance(source, (list, tuple)) and source and all(isinstance(each, Mapping) for each in source):
        _refuse_split(split)
        return record_batches(lambda: source, {})
    return None


def _batch_of_values(source: Any, split: str | None) -> Batch:
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        _refuse_split(split)
        return frame_batch(source)
    if hasattr(source, "element_spec") and hasattr(source, "as_numpy_iterator"):
        _refuse_split(split)
        return _array_batch(element_arrays(source))
    return _array_batch(_split_arrays(_as_arrays(source), split))


def _refuse_split(split: str | None) -> None:
    if split is not None:
        raise SourceError(f"split {split!r} was asked for, but the source is not divided; leave it out")


def _array_batch(arrays: Arrays) -> Batch:
    return {name: _column(name, array) for name, array in arrays.items()}


def _read_named(name: str, split: str | None) -> Arrays:
    if name == "digits":
        return _read_digits(split)
    if name.startswith("keras:"):
        return _read_keras(name.removeprefix("keras:"), split)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".npz":
        return _split_arrays(_read_npz(path), split)
    if _is_idx(path):
        return _read_idx_pair(path)
    raise SourceError(f"cannot load {name!r}: its content is not known from its name; give {_KNOWN}")


def _existing_file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise SourceError(f"cannot load {name!r}: the file {what}; give {_KNOWN}")
    return path


def _split_arrays(arrays: Arrays, split: str | None) -> Arrays:
    """Keep one part of arrays named like those of Keras' mnist.npz: x_train, y_train, x_test, y_test."""
    divided = {"x_train", "y_train", "x_test", "y_test"} <= set(arrays)
    if not divided:
        _refuse_split(split)
        return arrays
    part = split or "train"
    return _named_pair(arrays[f"x_{part}"], arrays[f"y_{part}"])


def _as_arrays(source: Any) -> Arrays:
    if isinstance(source, Mapping):
        return {str(name): values for name, values in source.items()}
    if isinstance(source, tuple) and len(source) == 2:
        return _named_pair(*source)
    array = np.asarray(source)
    if array.dtype.names:
        return {name: array[name] for name in array.dtype.names}
    return {"value": array}


def _named_pair(features: Any, labels: Any) -> Arrays:
    features = np.asarray(features)
    if features.dtype == np.uint8 and features.ndim >= 2:
        return {"pixels": features, "label": _as_labels(labels)}
    return {"features": features, "label": _as_labels(labels)}


def _as_labels(labels: Any) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:  # cifar10 comes as a column
        array = array[:, 0]
    return array.astype(np.int32) if array.dtype.kind in "iu" and array.dtype.itemsize <= 2 else array


def _read_npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        hint = "; save its object arrays as fixed-width strings instead" if "pickle" in str(error) else ""
        raise SourceError(f"cannot read {str(path)!r} as .npz: {error}{hint}") from error


def _read_digits(split: str | None) -> Arrays:
    """1,797 real digits of 8 x 8 pixels, 0-16; every fifth one is a test row."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    test = np.arange(len(bunch.target)) % 5 == 4
    chosen = {None: np.ones_like(test), "train": ~test, "test": test}[split]
    return _named_pair(bunch.images[chosen].astype(np.uint8), bunch.target[chosen].astype(np.int32))


def _read_keras(name: str, split: str | None) -> Arrays:
    import keras

    module = getattr(keras.datasets, name, None) if name.isidentifier() else None
    if module is None or not hasattr(module, "load_data"):
        known = "mnist, fashion_mnist, cifar10, cifar100"
        raise SourceError(f"Keras has no data set {name!r}; among others it has {known}")
    try:
        train, test = module.load_data()
    except Exception as error:  # Keras raises bare Exception when a download fails
        raise SourceError(
            f"cannot load keras:{name}: {error}; the first use downloads it and needs internet. "
            "Offline, use digits or a file"
        ) from error
    return _named_pair(*(test if split == "test" else train))


def _is_idx(path: Path) -> bool:
    with _open_idx(path) as file:
        try:
            magic = file.read(4)
        except (OSError, EOFError):
            return False
    return len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in _IDX_DTYPES and 1 <= magic[3] <= 8


def _open_idx(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def _read_idx_pair(path: Path) -> Arrays:
    """Read an IDX file; one of images or labels also brings the other file of its pair."""
    if not re.search("images|labels", path.name):
        return {"value": _read_idx(path)}
    images = path.with_name(path.name.replace("labels", "images").replace("idx1", "idx3"))
    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    pair = [_existing(part, path) for part in (images, labels)]
    return _named_pair(*(_read_idx(part) for part in pair))


def _existing(path: Path, asked: Path) -> Path:
    """The file itself, or the same one with or without .gz."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    for candidate in (path, other):
        if candidate.is_file():
            return candidate
    raise SourceError(f"cannot load {str(asked)!r}: its other half, {path.name!r}, is not beside it")


def _read_idx(path: Path) -> NDArray[Any]:
    try:
        with _open_idx(path) as file:
            head = file.read(4)
            shape = np.frombuffer(file.read(4 * head[3]), ">u4").astype(np.int64)
            body = file.read()
    except (OSError, EOFError, IndexError, ValueError) as error:
        raise SourceError(f"cannot read {str(path)!r} as an IDX file: {error}") from error
    dtype = np.dtype(_IDX_DTYPES.get(head[2], "u1"))
    if len(shape) != head[3] or len(body) != int(shape.prod()) * dtype.itemsize:
        said = " x ".join(map(str, shape))
        raise SourceError(
            f"{str(path)!r} is truncated or damaged: its header says {said} values, it holds {len(body)} "
            "bytes; fetch the file again"
        )
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _column(name: str, values: Any) -> SourceColumn:
    array = _as_array(values)
    if array.ndim == 0:
        raise SourceError(f"column {name!r} is a single value; give one value per row")
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != object:
        return primitive(name, array)
    if array.ndim > 1:
        array = _rows(array)
    if len(array) and all(isinstance(row, np.ndarray) and row.ndim > 1 for row in array):
        return _stacked_pictures(name, array)
    return column_of(name, list(array))


def _as_array(values: Any) -> NDArray[Any]:
    """Return values as an array that has lost nothing: NumPy would make texts of what stands beside one."""
    if isinstance(values, (list, tuple)):
        kinds = {type(value) for value in values}
        if len(kinds) > 1 or not kinds <= {int, float, bool, str, list, tuple, np.ndarray}:
            return _rows(values)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return _rows(values)
    is_mixed = isinstance(values, (list, tuple)) and array.ndim > 1 and array.dtype.kind in "US"
    return _rows(values) if is_mixed else array


def _rows(values: Any) -> NDArray[Any]:
    rows = np.empty(len(values), object)
    for number, value in enumerate(values):
        rows[number] = value
    return rows


def _stacked_pictures(name: str, rows: NDArray[Any]) -> SourceColumn:
    try:
        return primitive(name, np.stack(list(rows)))
    except ValueError as error:
        raise SourceError(f"column {name!r} holds pictures of different sizes; bring them to one") from error
