"""Sends a model to the workers as a .keras file in igfs. The file is checked before it is sent."""

from __future__ import annotations

import hashlib
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ignite_tf_magic.errors import ConfigError, PathNotFound
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.addresses import cluster_of
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.prediction.job import DIRECTORY
from ignite_tf_magic.settings.options import ConnectOptions
from ignite_tf_magic.training.untrusted_models import check_model, keras_version

_SUFFIX = ".keras"
_METADATA = "metadata.json"  # it also contains the time of saving
_PART_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model on this machine.

    Attributes:
        path: A .keras file.
        sha256: Hash of the file.
        content: Digest of the model that does not depend on the time of saving.
        trust: Whether the file may contain code.
    """

    path: Path
    sha256: str
    content: str
    trust: bool


def stage_model(options: ConnectOptions, model: Any, folder: Path, *, trust: bool) -> ModelFile:
    """Write a model to a folder of this machine, as a file that may be sent.

    Args:
        options: The cluster, for igfs:///.
        model: A model of Keras 3 or tf_keras, which is trusted as the caller's own; or the path of a .keras file, here
            or in igfs, which any user may have written.
        folder: A private folder of the caller.
        trust: Whether a file may contain code.

    Raises:
        ConfigError: It is neither a model nor a .keras file, cannot be saved, or may run code.
        PathNotFound: There is no such file.
    """
    path = folder / f"model{_SUFFIX}"
    if not isinstance(model, str | Path):
        _save(model, path)
        return ModelFile(path, _sha256(path), _content(path), trust=True)
    name = str(model)
    _check_name(name)
    if paths.is_uri(name):
        authority = paths.split_uri(name)[0]
        with Volume(lambda: cluster_of(authority) if authority else options) as volume:
            _read(volume, paths.parse(name), path)
    elif Path(name).expanduser().is_file():
        shutil.copyfile(Path(name).expanduser(), path)
    else:
        raise PathNotFound("no such file; pass a .keras file, igfs:///....keras, or a model", name)
    keras_version(path)
    if not trust:
        try:
            check_model(path, ())
        except ConfigError as error:
            raise ConfigError(
                f"the model {name} is not sent to workers: {error}. trust=True (--trust) runs its code: only "
                "if you trust all who can write this file"
            ) from error
    return ModelFile(path, _sha256(path), _content(path), trust)


def send_model(options: ConnectOptions, target: str, token: str, file: ModelFile) -> str:
    """Store a model in igfs for the workers, and remove the models of earlier predictions; returns its path.

    Args:
        options: The cluster.
        target: The cache for the outputs.
        token: Distinguishes this prediction's file from those of others.
        file: The model.
    """
    place = (*_directory(target), token, f"model{_SUFFIX}")
    remove_model(options, target)
    with Volume(lambda: options) as volume:
        volume.make_directory(place[:-1], parents=True, exist_ok=True)
        with file.path.open("rb") as source, volume.open_write(place) as copy:
            for part in _parts(source.read):
                copy.write(part)
    return paths.render(place)


def remove_model(options: ConnectOptions, target: str, token: str | None = None) -> None:
    """Remove the models of predictions into a cache from igfs; with a token, only that prediction's model."""
    place = _directory(target) if token is None else (*_directory(target), token)
    with Volume(lambda: options) as volume, suppress(PathNotFound):
        volume.remove_directory(place, with_contents=True)


def fetch_model(path: str, sha256: str, folder: Path) -> Path:
    """Copy the model from igfs to a worker.

    Raises:
        ConfigError: It is not the model that was sent.
    """
    local = folder / f"model{_SUFFIX}"
    with Volume(cluster_of) as volume:
        _read(volume, paths.parse(path), local)
    if _sha256(local) != sha256:
        raise ConfigError(f"igfs://{path} is not the model that was sent; predict again with the model")
    return local


def load_model(path: Path, *, trust: bool) -> Any:
    """Load a model with the version of Keras that wrote it, without what only training needs."""
    if keras_version(path).startswith("2"):
        import tf_keras

        return tf_keras.models.load_model(path, compile=False, safe_mode=not trust)
    import keras

    return keras.models.load_model(path, compile=False, safe_mode=not trust)


def _save(model: Any, path: Path) -> None:
    if not hasattr(model, "save") or not hasattr(model, "predict_on_batch"):
        raise ConfigError(
            f"{type(model).__name__} is neither a Keras model nor the path of one; pass keras.Model, a .keras file or "
            "its igfs:/// address"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts that only training needs
            model.save(path)
    except (NotImplementedError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise ConfigError(
            f"the model {model.name!r} cannot be saved to be sent to workers: {error}"
        ) from error


def _check_name(name: str) -> None:
    if not name.endswith(_SUFFIX):
        raise ConfigError(
            f"{name!r} is not a {_SUFFIX} file, the only format that can be checked before loading; save the "
            "model with model.save('model.keras')"
        )


def _directory(target: str) -> tuple[str, str]:
    return DIRECTORY, quote(target, safe=" ")


def _read(volume: Volume, place: tuple[str, ...], path: Path) -> None:
    with volume.open_read(place) as file, path.open("wb") as copy:
        space, done = memoryview(bytearray(_PART_BYTES)), 0
        while count := file.read_into(done, space):
            copy.write(space[:count])
            done += count


def _parts(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while part := read(_PART_BYTES):
        yield part


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for part in _parts(file.read):
            digest.update(part)
    return digest.hexdigest()


def _content(path: Path) -> str:
    """Return a digest of the members of a .keras file, except the one with the time of saving."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        for name in sorted(set(archive.namelist()) - {_METADATA}):
            digest.update(f"{name}\0{archive.getinfo(name).file_size}\0".encode())
            with archive.open(name) as file:
                for part in _parts(file.read):
                    digest.update(part)
    return digest.hexdigest()
