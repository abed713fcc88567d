"""Read training data from files, arrays and well-known data sets into plain NumPy columns.

This room knows nothing of Ignite: what it returns is what `client/load.py` puts into a cache. pandas,
pyarrow, scikit-learn and TensorFlow are imported only by the readers that need them.
"""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data import frames
from ignite_tf_magic.errors import LocalProtocolError, SourceError
from ignite_tf_magic.protocol.objects import name_id
from ignite_tf_magic.protocol.times import instant_of

Arrays = Mapping[str, Any]

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_WIDER = {"u1": np.int16, "u2": np.int32, "u4": np.int64, "f2": np.float32}
_TEXTS_AT_ONCE = 4096
_SPLITS = ("train", "test")
_KNOWN = "an .npz, .csv or .parquet file, an MNIST IDX file, keras:mnist or digits"


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns of equal length, in the order of the source.

    Attributes:
        values: Field name -> array. One dimension: one primitive per row (`object` arrays hold only str or
            only bytes; times have their own unit, in UTC). Two dimensions: one primitive array per row; `uint8` is a
            byte[]. Rows of more dimensions are flattened in C order: a 28 x 28 picture is 784 values.
        keys: Keys of the rows (int64 or str, no two equal), or None: the rows are numbered from 0.
    """

    values: dict[str, NDArray[Any]]
    keys: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


def read_source(source: Any, *, key: str | None = None, split: str | None = None) -> Columns:
    """Read `source` and check that every row of it has a form in a cache.

    Args:
        source: A path (npz, csv, parquet; MNIST IDX files, also with .gz: images find their labels), a name
            ("digits"; "keras:mnist" and other image sets of Keras, downloaded), a pandas DataFrame, a
            mapping of names to arrays, a pair (features, labels), or one array.
        key: Column whose values become the keys. Default: rows are numbered from 0.
        split: "train" or "test". Default: the training rows of a source that comes divided, all rows of
            one that does not.

    Raises:
        SourceError: The source is missing, unreadable, empty, or has a column without a form in a cache.
    """
    if split not in (None, *_SPLITS):
        raise SourceError(f"split {split!r} is neither 'train' nor 'test'")
    if isinstance(source, (str, Path)):
        name = str(source)
        try:
            arrays = _read_named(name, split)
        except ModuleNotFoundError as error:
            extra = "tensorflow" if name.startswith("keras:") else "data"
            raise SourceError(
                f"loading {name!r} needs the package {error.name!r}: pip install 'ignite_tf_magic[{extra}]'"
            ) from error
    else:
        name, arrays = f"the given {type(source).__name__}", _split_arrays(_as_arrays(source), split)
    return _checked(name, arrays, key)


def value_type_name(cache_name: str) -> str:
    """Name a cache's value type: `MNIST` -> `MNIST`, `my-digits.v2` -> `My_digits_v2`."""
    words = re.sub(r"\W", "_", cache_name)
    return words[:1].upper() + words[1:] if words[:1].isalpha() else f"T{words}"


def _read_named(name: str, split: str | None) -> Arrays:
    if name == "digits":
        return _read_digits(split)
    if name.startswith("keras:"):
        return _read_keras(name.removeprefix("keras:"), split)
    path = Path(name).expanduser()
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise SourceError(f"cannot load {name!r}: the file {what}; give {_KNOWN}")
    reader = _READERS.get(path.suffix.lower())
    if reader is not None:
        return _split_arrays(reader(path), split)
    if _is_idx(path):
        return _read_idx_pair(path)
    raise SourceError(f"cannot load {name!r}: its content is not known from its name; give {_KNOWN}")


def _split_arrays(arrays: Arrays, split: str | None) -> Arrays:
    """Keep one part of arrays named like those of Keras' mnist.npz: x_train, y_train, x_test, y_test."""
    divided = {"x_train", "y_train", "x_test", "y_test"} <= set(arrays)
    if not divided:
        if split is not None:
            raise SourceError(f"split {split!r} was asked for, but the source is not divided; leave it out")
        return arrays
    part = split or "train"
    return _named_pair(arrays[f"x_{part}"], arrays[f"y_{part}"])


def _as_arrays(source: Any) -> Arrays:
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        return frames.columns_of(source)
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


_READERS: dict[str, Callable[[Path], Arrays]]
_READERS = {".npz": _read_npz, ".csv": frames.read_csv, ".parquet": frames.read_parquet}


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


def _checked(source: str, arrays: Arrays, key: str | None) -> Columns:
    if not arrays:
        raise SourceError(f"{source} holds no columns; nothing was loaded")
    values = {name: _column(name, array) for name, array in arrays.items()}
    lengths = {name: len(array) for name, array in values.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise SourceError(f"columns of {source} must have one length, found {listed}")
    if not next(iter(lengths.values())):
        raise SourceError(f"{source} holds no rows; nothing was loaded")
    _check_names(source, values)
    if key is None:
        return Columns(values)
    if key not in values:
        raise SourceError(f"{source} has no column {key!r} to take keys from; it has {', '.join(values)}")
    keys = _keys(key, values.pop(key))
    if not values:
        raise SourceError(f"{source} has no column beside the key {key!r}; a row needs at least one value")
    return Columns(values, keys)


def _check_names(source: str, values: Arrays) -> None:
    """Refuse names that a cache cannot have, before it is made: one that could not be made blocks its name."""
    folded: dict[str, str] = {}
    ids: dict[int, str] = {}
    for name in values:
        if not name.strip():
            raise SourceError(f"{source} has a column without a name; give every column one")
        if not _is_encodable(name):
            raise SourceError(
                f"column {name!a} of {source} has half a character (a lone surrogate); rename it"
            )
        if name.upper() in ("_KEY", "_VAL"):
            raise SourceError(
                f"column {name!r} of {source} has a name that Ignite keeps for itself; rename it"
            )
        if '"' in name or "." in name:  # SQL would have no table, or nulls: a dot leads into an object
            raise SourceError(
                f"column {name!r} of {source} has a dot or a quote, which SQL columns cannot; rename it"
            )
        other = folded.setdefault(name.upper(), name)  # as SQL folds names
        if other != name:
            raise SourceError(f"columns {other!r} and {name!r} of {source} differ by case only; rename one")
        other = ids.setdefault(name_id(name), name)
        if other != name:
            raise SourceError(
                f"columns {other!r} and {name!r} of {source} are the same to Ignite; rename one"
            )


def _column(name: str, values: Any) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise SourceError(f"column {name!r} holds rows of different lengths; pad them to one") from error
    if array.ndim == 0:
        raise SourceError(f"column {name!r} is a single value; give one value per row")
    if array.dtype == object:
        array = _from_objects(name, array)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype == object:
        _check_text(name, array)
        return array
    if array.ndim > 2:
        array = array.reshape(len(array), -1) if array.size else array.reshape(0, 1)
    return _primitive(name, array)


def _check_text(name: str, array: NDArray[Any]) -> None:
    if array.ndim != 1 or not len(array) or not isinstance(array[0], str):
        return
    for first in range(0, len(array), _TEXTS_AT_ONCE):
        if not _is_encodable("".join(array[first : first + _TEXTS_AT_ONCE])):
            row = next(row for row in range(first, len(array)) if not _is_encodable(array[row]))
            raise SourceError(
                f"column {name!r} has half a character (a lone surrogate) in row {row}, which UTF-8 cannot hold; "
                "decode the text as what it was, or replace it: text.encode('utf-8', 'replace').decode()"
            )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _from_objects(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Stack rows that are arrays; pass columns of only str or only bytes."""
    kinds = {type(value) for value in array.flat}
    if array.ndim == 1 and (not kinds or kinds <= {str} or kinds <= {bytes}):
        return array
    if array.ndim == 1 and kinds <= {np.ndarray, list, tuple}:
        try:
            return _not_object(name, np.stack([np.asarray(row) for row in array]))
        except ValueError as error:
            raise SourceError(f"column {name!r} holds rows of different lengths; pad them to one") from error
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise SourceError(
        f"column {name!r} holds {found}; a column is all numbers, all str, all bytes or all arrays of one "
        "length: convert it first"
    )


def _not_object(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind in "OUS":
        raise SourceError(
            f"column {name!r} holds lists of {array.dtype}; only lists of numbers can be loaded"
        )
    return array


def _primitive(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Bring numbers to the types Ignite has: signed integers, floats, booleans, timestamps, byte[]."""
    code = array.dtype.str[1:]
    if array.dtype.kind == "M":
        return _times(name, array)
    if array.dtype.kind not in "biuf" or code == "f16":
        raise SourceError(f"column {name!r} has the type {array.dtype}, which Ignite lacks; convert it first")
    if code == "u1" and array.ndim == 2:
        return array
    if code == "i1" and array.ndim == 2:  # a byte[] is read back as uint8
        return array.astype(np.int16)
    if code == "u8":
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise SourceError(f"column {name!r} holds integers above 2**63 - 1, too large for Ignite's long")
        return array.astype(np.int64)
    return array.astype(_WIDER.get(code, array.dtype.newbyteorder("=")))


def _times(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim > 1:
        raise SourceError(f"column {name!r} holds arrays of times, which Ignite lacks; make a column of each")
    if np.isnat(array).any():
        raise SourceError(f"column {name!r} has missing times (NaT); fill them or drop the rows")
    try:
        for extreme in (array.min(), array.max()) if array.size else ():
            instant_of(extreme)
    except LocalProtocolError as error:
        raise SourceError(f"column {name!r}: {error}; clip it, or drop the rows") from error
    return array.astype(array.dtype.newbyteorder("="))


def _keys(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "i" and array.ndim == 1:
        keys = array.astype(np.int64)
    elif array.dtype == object and isinstance(array[0], str):
        keys = array
    else:
        raise SourceError(f"column {name!r} cannot be the key: found {array.dtype}, not integers or text")
    distinct = len(np.unique(keys))
    if distinct != len(keys):
        raise SourceError(
            f"column {name!r} cannot be the key: {len(keys) - distinct} of its {len(keys)} values are "
            "repeated, and rows with one key replace each other"
        )
    return keys
