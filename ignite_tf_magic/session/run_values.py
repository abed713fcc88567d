"""Values that travel through igfs between a notebook and a run: variables, a result, models.

All formats are read without executing code; see `values`.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ignite_tf_magic.errors import ConfigError, PathNotFound
from ignite_tf_magic.igfs.addresses import cluster_of
from ignite_tf_magic.igfs.layout import FileNode
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.serialization.values import decode, encode
from ignite_tf_magic.settings.options import ConnectOptions
from ignite_tf_magic.training.models import WEIGHTS, WHOLE, as_built, leave_model
from ignite_tf_magic.training.task import task
from ignite_tf_magic.training.untrusted_models import check_model, check_weights, keras_version

_INPUTS, _RESULT = "inputs.zip", "result.zip"
_MODEL = "ignite_tf_model"  # attribute that holds a model's name, in the model's place
_KEPT = "result.pickle"
_MODELS = "model"
_PART_BYTES = 4 << 20


# In a worker


def result(value: Any) -> None:
    """Return a value to the process that started this worker's run; there it is `RUN.result`.

    Accepts Keras models, what their `fit` returns, numbers, strings, arrays, tables, and containers of these, up to
    256 MiB in addition to the models. Only the first worker's value is kept, and only its last one. Outside of a run
    the value is only checked.

    Raises:
        ConfigError: The value has no safe serialized form, or is too large.
    """
    models: list[Any] = []
    data = encode({"result": _without_models(value, models)})
    run_id = os.environ.get("IGNITE_TF_RUN_ID")
    if run_id and task().is_chief:
        for model in models:
            leave_model(model)  # only the chief: two workers would write the same file
        with Volume(cluster_of) as volume:
            _put(volume, run_id, _RESULT, data)


def give(value: Any) -> None:
    """Return the result of a function that `ignite_tf_magic.run` sent; save it to a file if it cannot be returned.

    Raises:
        ConfigError: As `result`; the message contains the path of the file.
    """
    try:
        result(value)
    except ConfigError as error:
        import cloudpickle  # a script's interpreter may not have it

        path = Path(os.environ.get("IGNITE_TF_RUN_DIR", ".")) / _KEPT
        try:
            path.write_bytes(cloudpickle.dumps(value))
        except Exception as failure:  # noqa: BLE001 - whatever a class raises when it is pickled
            raise ConfigError(
                f"the function's result is lost: {error}; it cannot be pickled either: {failure}"
            ) from error
        raise ConfigError(
            f"{error}. The function's result is kept on {platform.node()}, in {path}, where "
            "cloudpickle.load(open(path, 'rb')) reads it, beside the run's other files"
        ) from error


def _without_models(value: Any, models: list[Any]) -> Any:
    """Replace models in a value by their names, and `History` objects by their numbers. Collects the models."""
    if _is_of_keras_class(value, "Model"):
        models.append(value)
        return SimpleNamespace(**{_MODEL: value.name})
    if _is_of_keras_class(value, "History"):
        return SimpleNamespace(history=value.history, epoch=value.epoch, params=value.params)
    if type(value) in (list, tuple):
        return type(value)(_without_models(each, models) for each in value)
    if type(value) is dict:
        return {key: _without_models(each, models) for key, each in value.items()}
    return value


def _with_models(value: Any, load: Callable[[str], Any]) -> Any:
    """Replace names of models in a value by the loaded models."""
    if isinstance(value, SimpleNamespace) and vars(value).keys() == {_MODEL}:
        return load(getattr(value, _MODEL))
    if type(value) in (list, tuple):
        return type(value)(_with_models(each, load) for each in value)
    if type(value) is dict:
        return {key: _with_models(each, load) for key, each in value.items()}
    return value


def _is_of_keras_class(value: Any, name: str) -> bool:
    origins = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__}
    return bool(origins & {("keras", name), ("tf_keras", name)})


def pushed() -> dict[str, Any]:
    """Read the variables that were pushed to the run of this worker."""
    run_id = os.environ["IGNITE_TF_RUN_ID"]
    with Volume(cluster_of) as volume:
        return decode(_get(volume, ("runs", run_id, _INPUTS)))


# In the process that started the run


def push(options: ConnectOptions, run_id: str, data: bytes) -> None:
    """Store variables, serialized by `values.encode`, for the workers of a run that is about to start."""
    with Volume(lambda: options) as volume:
        _put(volume, run_id, _INPUTS, data)


def read_result(options: ConnectOptions, run_id: str) -> Any:
    """Read the value that a run's script passed to `result`.

    Raises:
        PathNotFound: There is no result yet.
        ConfigError: The stored result is damaged.
    """
    with Volume(lambda: options) as volume:
        try:
            found = decode(_get(volume, ("runs", run_id, _RESULT)))
        except PathNotFound:
            raise PathNotFound(
                f"run {run_id} has stored no result; a script stores one with ignite_tf_magic.result(value)"
            ) from None
    # Earlier versions stored a model's name in a field of its own.
    value = SimpleNamespace(**{_MODEL: found["model"]}) if "model" in found else found["result"]
    return _with_models(value, lambda name: load_model(options, run_id, name))


def list_models(volume: Volume, run_id: str) -> dict[str, tuple[int, str]]:
    """Return the models that a run saved, by name: time of writing in ns since 1970, and file suffix."""
    try:
        entries = [entry for page in volume.entries(("runs", run_id, _MODELS)) for entry in page]
    except PathNotFound:
        return {}
    found: dict[str, tuple[int, str]] = {}
    for file, node in entries:
        form = next((each for each in (WEIGHTS, WHOLE) if file.endswith(each)), None)
        if form and isinstance(node, FileNode):
            name = file.removesuffix(form)
            found[name] = max(found.get(name, (0, "")), (node.mtime_ns, form))
    return found


def load_model(
    options: ConnectOptions,
    run_id: str,
    name: str | None,
    *,
    into: Any = None,
    trust: bool = False,
    **given: Any,
) -> Any:
    """Load a model that a run's `fit` saved, with the Keras that wrote it: Keras 3 or tf_keras.

    Args:
        options: The cluster.
        run_id: The run.
        name: The model's name in Keras; None is the last one that was trained.
        into: A model that takes the weights, required if only weights were saved.
        trust: Whether a model may contain code, which is then executed. Any user who can write to the cluster can also
            write models.
        given: Arguments of Keras' own `load_model`, such as `custom_objects`.

    Raises:
        PathNotFound: There is no such model.
        ConfigError: Only weights were saved and `into` is missing, or the model may run code.
    """
    with Volume(lambda: options) as volume, tempfile.TemporaryDirectory() as folder:
        known = list_models(volume, run_id)
        chosen = name or max(known, key=lambda each: known[each], default=None)
        if chosen is None or chosen not in known:
            there = f"it has left {', '.join(known)}" if known else "`fit` leaves one when it ends"
            raise PathNotFound(f"run {run_id} has left no model{f' {name!r}' if name else ''}; {there}")
        form = known[chosen][1]
        path = Path(folder) / f"model{form}"
        path.write_bytes(_get(volume, ("runs", run_id, _MODELS, f"{chosen}{form}")))
        keras = None if form == WEIGHTS else _keras_of(path)
        if trust:
            given = {"safe_mode": False, **given}
        else:
            _check(path, f"{chosen}{form} of run {run_id}", keras, given)
        if keras is None:
            return _with_weights(into, path, f"run {run_id} has left the weights of {chosen!r} only")
        model = keras.models.load_model(path, **given)
        if into is None:
            return model
        into.set_weights(model.get_weights())
        return into


def _check(path: Path, what: str, keras: Any, given: Mapping[str, Any]) -> None:
    """Raise ConfigError if a model may run code when it is loaded."""
    try:
        if keras is None:
            check_weights(path)
        else:
            registered = keras.saving.get_custom_objects().items()
            own = {
                name for name, each in registered if not _is_of_keras(each)
            }  # tf_keras registers its optimizers
            check_model(path, {*own, *(given.get("custom_objects") or {})})
    except ConfigError as error:
        raise ConfigError(
            f"the model {what} was not loaded: {error}. Classes and functions of your own: "
            "RUN.model(custom_objects={'Net': Net}), or keras.saving.register_keras_serializable. "
            "RUN.model(trust=True) runs its code: only if you trust all who can write into the cluster"
        ) from error


def _is_of_keras(registered: Any) -> bool:
    return str(getattr(registered, "__module__", "")).partition(".")[0] in ("keras", "tf_keras")


def _with_weights(model: Any, path: Path, what: str) -> Any:
    if model is None:
        raise ConfigError(f"{what}; make the model as its script does, and load them: RUN.model(into=model)")
    with as_built(model):
        model.load_weights(path)
    return model


def _keras_of(path: Path) -> Any:
    """Import the version of Keras that wrote a file."""
    if keras_version(path).startswith("2"):
        import tf_keras

        return tf_keras
    import keras

    return keras


def _put(volume: Volume, run_id: str, name: str, data: bytes) -> None:
    volume.make_directory(("runs", run_id), parents=True, exist_ok=True)
    volume.write_file(("runs", run_id, name), data)


def _get(volume: Volume, path: tuple[str, ...]) -> bytes:
    with volume.open_read(path) as file:
        try:
            found = bytearray(file.node.size)
        except (MemoryError, OverflowError) as error:
            raise ConfigError(
                f"igfs:///{'/'.join(path)} has {file.node.size:,} bytes by its record, which do not fit into memory"
            ) from error
        done = 0
        while count := file.read_into(done, memoryview(found)[done : done + _PART_BYTES]):
            done += count
        if done < len(found):
            raise ConfigError(f"igfs:///{'/'.join(path)} has changed while it was read; read it again")
    return bytes(found)
