"""Checks, before Keras loads a saved model, that loading it runs no code and reads no other file.

A .keras file names the objects that Keras creates. The accepted names depend on the version of Keras: tf_keras imports
any module. So this module accepts only what is known to be harmless, for both frameworks: layers, losses and similar
objects of Keras itself, and objects that this process has registered or was passed. It does not import TensorFlow.
"""

from __future__ import annotations

import builtins
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import ConfigError

_MEMBERS = re.compile(r"metadata\.json|config\.json|model(_\d+)?\.weights\.(h5|json)|assets/.*")
_MAX_JSON_BYTES = 64 << 20  # it takes at most twenty times as much memory
_MAX_METADATA_BYTES = 1 << 20
_MAX_SIZES = 1000  # the limit for the ratio of weights to file size; only zeros compress better
# The errors of reading a file that is truncated, encrypted, nested too deeply for Python, or not an archive. zipfile
# raises RuntimeError if a password is needed. RuntimeError also includes RecursionError and NotImplementedError.
_DAMAGED = (
    KeyError,
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
_CLASS, _NAME = re.compile(r"[A-Z]\w*", re.ASCII), re.compile(r"[A-Za-z]\w*", re.ASCII)
_VALUES = frozenset(
    {"__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__", "__tuple__"}
)
_OF_FUNCTIONS = frozenset(
    {"activations", "constraints", "initializers", "losses", "metrics", "optimizers", "regularizers"}
)
_OF_CLASSES = _OF_FUNCTIONS | {
    *("", "layers", "models", "dtype_policies", "mixed_precision", "quantizers", "random"),
    *("optimizers.schedules", "optimizers.legacy", "optimizers.experimental"),
}
_MODELS = frozenset({"Functional", "Sequential", "Model"})
_OPERATIONS = frozenset({"TFOpLambda", "SlicingOpLambda"})
# Classes that run code from the file, or read other files that it names.
_DANGEROUS = frozenset(
    {
        *("Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TensorFlowOpLayer"),
        *("ClassMethod", "InstanceMethod", "InstanceProperty", "DenseFeatures", "SequenceFeatures"),
    }
)
_LOOKUPS = frozenset({"StringLookup", "IntegerLookup", "TextVectorization"})
_SPECS = frozenset({"TensorSpec", "SparseTensorSpec", "RaggedTensorSpec"})
# TensorFlow's functions that only compute. A model file could also name others, such as `io.write_file`.
_COMPUTES = re.compile(
    r"(tf\.)?((math|nn|linalg|signal|__operators__)\.(\w+\.)?\w+|(abs|add|argmax|argmin|boolean_mask|broadcast_to|cast|"
    r"clip_by_value|concat|convert_to_tensor|cos|divide|einsum|equal|exp|expand_dims|fill|gather|gather_nd|greater|"
    r"identity|less|matmul|maximum|minimum|multiply|norm|not_equal|one_hot|ones|ones_like|pad|pow|range|rank|reduce_\w+|"
    r"repeat|reshape|reverse|roll|round|shape|sigmoid|sign|sin|size|slice|split|sqrt|square|squeeze|stack|"
    r"stop_gradient|strided_slice|subtract|sum|tanh|tensordot|tile|transpose|truediv|unstack|where|zeros|zeros_like))"
)


def check_model(path: Path, known: Collection[str]) -> None:
    """Check a .keras file.

    Args:
        path: The file.
        known: Names of classes and functions that the user has registered or passed.

    Raises:
        ConfigError: It contains an object that may run code or read files, which the message names, or it is not a
            .keras file.
    """
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            names = archive.namelist()
            strange = [name for name in names if not _MEMBERS.fullmatch(name) or ".." in name]
            if strange or len(names) != len(set(names)):
                raise ConfigError(
                    f"it holds {strange[0]!r}" if strange else "it holds two files with the same name"
                )
            # A compressed member may be larger than declared, and Keras would decompress it at once. Keras itself
            # compresses nothing.
            if any(each.compress_type or each.compress_size != each.file_size for each in archive.infolist()):
                raise ConfigError("parts of it are compressed, which Keras does not do")
            large = [
                each.filename
                for each in archive.infolist()
                if each.filename.endswith(".json") and each.file_size > _MAX_JSON_BYTES
            ]
            if large:
                raise ConfigError(f"its {large[0]} is too large for a model")
            for problem in _problems(json.loads(archive.read("config.json")), frozenset(known)):
                raise ConfigError(problem)
            for name in names:
                if name.endswith(".h5"):
                    check_weights(Path(archive.extract(name, folder)))
    except _DAMAGED as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"it is not a .keras file: {error}") from error


def keras_version(path: Path) -> str:
    """Return the version of Keras that wrote a .keras file, according to its metadata.

    Raises:
        ConfigError: The file is not a .keras file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("metadata.json").compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise ValueError("its metadata.json is compressed in a way that Keras does not support")
            with archive.open("metadata.json") as file:
                text = file.read(_MAX_METADATA_BYTES + 1)
        if len(text) > _MAX_METADATA_BYTES:
            raise ValueError("its metadata.json is too large for a model")
        return str(json.loads(text).get("keras_version", "3"))
    except (*_DAMAGED, AttributeError) as error:
        raise ConfigError(f"the model that the run saved is not a .keras file: {error}") from error


def check_weights(path: Path) -> None:
    """Check that a file of weights (HDF5) contains all its data itself, and is not too large when unpacked.

    Raises:
        ConfigError: The file refers to other files on this machine, is too large when unpacked, or is not HDF5.
    """
    import h5py

    elsewhere: list[str] = []
    sizes: list[int] = []

    def look(name: str, link: Any) -> None:
        if isinstance(link, h5py.ExternalLink):
            elsewhere.append(name)

    def look_inside(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            sizes.append(item.nbytes)
            if item.external or item.is_virtual:
                elsewhere.append(name)

    try:
        with h5py.File(path, "r") as file:
            file.visititems_links(look)
            file.visititems(look_inside)
    except (OSError, RuntimeError, KeyError) as error:
        raise ConfigError(f"its weights cannot be read: {error}") from error
    if elsewhere:
        raise ConfigError(f"its weights {elsewhere[0]!r} would be read from another file of this machine")
    if sum(sizes) > _MAX_SIZES * path.stat().st_size:
        raise ConfigError("its weights are a thousand times larger than their file when unpacked")


def _problems(value: Any, known: frozenset[str]) -> Iterator[str]:
    """Yield what is not known to be harmless, depth first. Checks every object with a class name, at any level."""
    if isinstance(value, list):
        for each in value:
            yield from _problems(each, known)
    elif isinstance(value, dict):
        if "class_name" in value and (problem := _problem(value, known)):
            yield problem
        for each in value.values():
            yield from _problems(each, known)


def _problem(found: Mapping[str, Any], known: frozenset[str]) -> str:
    name, config = found["class_name"], found.get("config")
    module, registered = found.get("module"), found.get("registered_name")
    if name in _VALUES:
        return ""
    if name == "function":
        return _function_problem(config, module, known)
    shown = f"a {name} of {module}" if module else f"a {name}"
    if name == "__typespec__":
        is_ours = (
            found.get("spec_name") in _SPECS
            and str(module).startswith("tensorflow.python.")
            and not registered
        )
        return "" if is_ours else f"it holds a specification, {found.get('spec_name')!r} of {module!r}"
    if name in _DANGEROUS or registered in _DANGEROUS:
        return f"it holds {shown}, which runs code, or reads files, chosen by its author"
    # A registered name counts only if Keras looks it up: it makes a layer without a module by its class name alone.
    if registered not in known or "module" not in found:
        allowed = (None, name, f"Custom>{name}", *_OPERATIONS)
        if not isinstance(name, str) or not _CLASS.fullmatch(name) or registered not in allowed:
            return f"it holds {name!r} ({registered!r}), which is not a class of Keras"
        if "module" in found and not _is_of_keras(str(module), name):
            return f"it holds {shown}, which is not part of Keras"
    if name in _OPERATIONS and not _COMPUTES.fullmatch(str(_function_of(config))):
        return f"it holds a call of TensorFlow's {_function_of(config)!r}"
    if name in _LOOKUPS and isinstance(config, Mapping) and isinstance(config.get("vocabulary"), str):
        return f"it holds {shown}, whose vocabulary is in the file {config['vocabulary']!r}"
    return ""


def _function_of(config: Any) -> Any:
    """Return the function that an operation layer calls, in the format of older and newer versions."""
    function = config.get("function") if isinstance(config, Mapping) else None
    return "__operators__.getitem" if function is None else function


def _function_problem(name: Any, module: Any, known: frozenset[str]) -> str:
    if name in known:
        return ""
    is_plain = isinstance(name, str) and _NAME.fullmatch(name) is not None
    if module == "builtins" and is_plain and not hasattr(builtins, name):
        return ""
    root, _, kind = str(module).partition(".")
    if root in ("keras", "tf_keras") and kind in _OF_FUNCTIONS and is_plain:
        return ""
    return f"it holds the function {name!r} of {module}, which is not part of Keras"


def _is_of_keras(module: str, name: str) -> bool:
    root, _, rest = module.partition(".")
    if root not in ("keras", "tf_keras"):
        return False
    if rest in _OF_CLASSES:
        return True
    if rest == "src.layers.core.tf_op_layer":
        return name in _OPERATIONS
    inside = rest.removeprefix("src.").partition(".")[0]
    return rest.startswith("src.") and (
        name in _MODELS if inside in ("models", "engine") else inside == "ops"
    )
