"""Reads files of arrays and well-known data sets: NumPy, MNIST, Keras and digits."""

from __future__ import annotations

import gzip
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data.arrays import Arrays, named_pair
from ignite_tf_magic.errors import SourceError

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
KNOWN_SOURCES = (
    "an .npz, .npy, .csv, .tsv, .json, .jsonl or .parquet file, a folder of .parquet files, an MNIST IDX file, "
    "keras:mnist or digits"
)


def refuse_split(split: str | None) -> None:
    """Refuse a split of a source that is not divided.

    Raises:
        SourceError: `split` is not None.
    """
    if split is not None:
        raise SourceError(f"split {split!r} was asked for, but the source is not divided; leave it out")


def split_arrays(arrays: Arrays, split: str | None) -> Arrays:
    """Return one part of arrays named as in Keras' mnist.npz: x_train, y_train, x_test, y_test.

    Raises:
        SourceError: A part was requested, and the arrays are not divided.
    """
    divided = {"x_train", "y_train", "x_test", "y_test"} <= set(arrays)
    if not divided:
        refuse_split(split)
        return arrays
    part = split or "train"
    return named_pair(arrays[f"x_{part}"], arrays[f"y_{part}"])


def read_named(name: str, split: str | None) -> Arrays:
    """Read a known data set, or a file of arrays, by its name.

    Raises:
        SourceError: The source cannot be read, or its content is unknown.
    """
    if name == "digits":
        return _read_digits(split)
    if name.startswith("keras:"):
        return _read_keras(name.removeprefix("keras:"), split)
    path = Path(name).expanduser()
    if path.suffix.lower() in (".npz", ".npy"):
        return split_arrays(_read_numpy(path), split)
    if _is_idx(path):
        return _read_idx_pair(path)
    raise SourceError(f"cannot load {name!r}: its content is not known from its name; give {KNOWN_SOURCES}")


def _read_numpy(path: Path) -> Arrays:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {name: found[name] for name in found.dtype.names or ()} or {"value": found}
        with found:
            return {name: found[name] for name in found.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        hint = "; save its object arrays as fixed-width strings instead" if "pickle" in str(error) else ""
        raise SourceError(f"cannot read {str(path)!r} as {path.suffix}: {error}{hint}") from error


def _read_digits(split: str | None) -> Arrays:
    """Return 1,797 real digits of 8 x 8 pixels with values 0 to 16. Every fifth digit is a test row."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    test = np.arange(len(bunch.target)) % 5 == 4
    chosen = {None: np.ones_like(test), "train": ~test, "test": test}[split]
    return named_pair(bunch.images[chosen].astype(np.uint8), bunch.target[chosen].astype(np.int32))


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
    return named_pair(*(test if split == "test" else train))


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
    """Read an IDX file. For a file of images or labels, also read the other file of the pair."""
    if not re.search("images|labels", path.name):
        return {"value": _read_idx(path)}
    images = path.with_name(path.name.replace("labels", "images").replace("idx1", "idx3"))
    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    pair = [_existing(part, path) for part in (images, labels)]
    return named_pair(*(_read_idx(part) for part in pair))


def _existing(path: Path, asked: Path) -> Path:
    """Return the existing file: the path itself, or the path with or without .gz."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    for candidate in (path, other):
        if candidate.is_file():
            return candidate
    raise SourceError(f"cannot load {str(asked)!r}: its other half, {path.name!r}, is not in the same folder")


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
