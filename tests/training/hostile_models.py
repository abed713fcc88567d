"""Loads models that others wrote to igfs, as a notebook does: `python hostile_models.py KERAS DIRECTORY`.

Prints for each model "loaded" or the error, and whether code from the file was run.
"""

from __future__ import annotations

import importlib
import io
import json
import resource
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np

from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.session.run_values import load_model
from ignite_tf_magic.settings.options import configured_cluster

keras = importlib.import_module(sys.argv[1])
directory = Path(sys.argv[2])
options = configured_cluster()
layers = keras.layers
DEFLATED = zipfile.ZIP_DEFLATED
LONG = b"[" + b"1," * (40 << 20) + b"1]"
TRACE = directory / "somebody-ran-it"
SECRET = directory / "secret.txt"
MAX_KIB = 300 << 10  # Linux counts in KiB; unpacked content takes at least twice this
SECRET.write_text("one\ntwo\n")


def saved(model):
    path = directory / "model.keras"
    model.save(path)
    return path.read_bytes()


def changed(data, change=lambda config: None, *, packed=zipfile.ZIP_STORED, **members):
    """Rewrite a .keras file with a changed configuration or other members."""
    into = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(into, "w", packed) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config)
                content = json.dumps(config).encode()
            new.writestr(name, members.pop(name, content))
        for name, content in members.items():
            new.writestr(name, content)
    return into.getvalue()


def packed_zeros():
    return changed(saved(plain()), packed=DEFLATED, **{"assets/zeros": b"\0" * (16 << 20)})


def understated(data):
    """Make the last member claim that its size is its packed size."""
    at = data.rindex(b"PK\1\2")
    packed = data[at + 20 : at + 24]
    return data[: at + 24] + packed + data[at + 28 :]


def encrypted(data):
    """Mark all members as encrypted."""
    at, changed = -1, bytearray(data)
    while (at := data.find(b"PK\1\2", at + 1)) >= 0:
        changed[at + 8] |= 1
    return bytes(changed)


def plain(name="plain"):
    return keras.Sequential([keras.Input((4,)), layers.Dense(2, activation="relu")], name=name)


def functional():
    given = layers.Input((8,))
    found = (layers.Dense(4, activation=keras.activations.gelu)(given) * 2 + 1)[:, :2]
    found = layers.Concatenate()([found, layers.BatchNormalization()(found)])
    model = keras.Model(given, layers.Dense(3, kernel_regularizer="l2")(found))
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy", keras.metrics.AUC()])
    return model


def words():
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    return keras.Sequential([keras.Input((1,), dtype="string"), lookup, layers.Embedding(4, 2)])


def sequence():
    wrapped = layers.Bidirectional(layers.LSTM(2, return_sequences=True))
    return keras.Sequential([keras.Input((3, 2)), wrapped, layers.TimeDistributed(layers.Dense(2))])


@keras.saving.register_keras_serializable("hostile")
class Registered(layers.Layer):
    def call(self, inputs):
        return inputs


class Given(layers.Layer):
    def call(self, inputs):
        return inputs


def touching():
    """Return a layer with code; the code contains its constants."""
    code = f"lambda x: (__import__('os').system('touch {TRACE}'), x)[1]"
    return layers.Lambda(eval(code), output_shape=(4,))


def with_layer(layer):
    return keras.Sequential([keras.Input((4,)), layer, layers.Dense(2)])


def instead(**entry):
    def change(config):
        config["config"]["layers"][-1] = entry

    return changed(saved(plain()), change)


def weights_of_zeros():
    """Return a model file that declares 8 GiB of weights but contains none."""
    path = directory / "zeros.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("w", (1 << 31,), "f4", chunks=(1 << 20,), compression="gzip")
    return changed(saved(plain()), **{"model.weights.h5": path.read_bytes()})


def elsewhere(how):
    """Return a model file with a weight that is stored in another file of this machine."""
    data = saved(plain())
    path = directory / "weights.h5"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        path.write_bytes(archive.read("model.weights.h5"))
    secret = directory / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.zeros((4, 2), "f4")
    with h5py.File(path, "r+") as file:
        found = []
        file.visititems(
            lambda name, item: found.append(name) if getattr(item, "shape", None) == (4, 2) else None
        )
        (name,) = found[:1]
        del file[name]
        if how == "link":
            file[name] = h5py.ExternalLink(str(secret), "x")
        elif how == "virtual":
            layout = h5py.VirtualLayout((4, 2), "f4")
            layout[:] = h5py.VirtualSource(str(secret), "x", (4, 2))
            file.create_virtual_dataset(name, layout)
        else:
            file.create_dataset(name, (4, 2), "f4", external=[(str(SECRET), 0, h5py.h5f.UNLIMITED)])
    return changed(data, **{"model.weights.h5": path.read_bytes()})


def as_an_optimizer_of_keras(**entry):
    """Return a layer without a module, created by its class, under a name that Keras itself has registered."""

    def change(config):
        layer = config["config"]["layers"][-1]
        layer.pop("module", None)
        layer["registered_name"] = "Custom>Adam"
        layer.update({name: value for name, value in entry.items() if name != "config"})
        layer["config"].update(entry.get("config", {}))

    return changed(saved(keras.Sequential([keras.Input((1,), dtype="string"), lookup_layer()])), change)


def lookup_layer():
    return layers.StringLookup(vocabulary=["a", "b"])


def called_when_loaded():
    """Return a Lambda that names an existing function and calls it with a constant."""

    def change(config):
        named = {"module": "os", "class_name": "function", "config": "popen", "registered_name": "popen"}
        function = {"function": named, "function_type": "function", "module": "os", "arguments": {}}
        shape = {"output_shape": None, "output_shape_type": "raw", "output_shape_module": None}
        inner = config["config"]
        inner["layers"][-1] = {
            "module": "keras.layers",
            "class_name": "Lambda",
            "config": {"name": "last", "trainable": True, "dtype": "float32", **function, **shape},
            "registered_name": None,
            "name": "last",
            "inbound_nodes": [[["_CONSTANT_VALUE", -1, f"touch {TRACE}", {}]]],
        }
        inner["output_layers"] = [["last", 0, 0]]

    given = layers.Input((4,))
    return changed(saved(keras.Model(given, layers.Dense(2)(given))), change)


def vocabulary_of_a_file():
    def change(config):
        for layer in config["config"]["layers"]:
            if layer["class_name"] == "StringLookup":
                layer["config"]["vocabulary"] = str(SECRET)

    return changed(saved(words()), change)


def legacy():
    path = directory / "model.h5"
    plain().save(path)
    return path.read_bytes()


call = {"name": "x", "trainable": True}
evil = {"module": "os", "config": f"touch {TRACE}", "registered_name": "system"}
HARMLESS = {
    "sequential": lambda: saved(plain()),
    "functional": lambda: saved(functional()),
    "words": lambda: saved(words()),
    "sequence": lambda: saved(sequence()),
    "registered": lambda: saved(with_layer(Registered())),
}
HOSTILE = {
    "lambda": lambda: saved(with_layer(touching())),
    "lambda of another name": lambda: changed(
        saved(with_layer(touching())),
        lambda config: config["config"]["layers"][1].update(class_name="X", registered_name="Lambda"),
    ),
    "lambda by its module": lambda: changed(
        saved(with_layer(touching())),
        lambda config: config["config"]["layers"][1].update(
            class_name="core.Lambda", module=f"{sys.argv[1]}.src.layers"
        ),
    ),
    "a function that is called": called_when_loaded,
    "not given": lambda: saved(with_layer(Given())),
    "a function of a module": lambda: instead(class_name="function", **evil),
    "a class of a module": lambda: instead(
        class_name="Popen",
        module="subprocess",
        config={"args": f"touch {TRACE}", "shell": True},
        registered_name=None,
    ),
    "a function of Python": lambda: instead(
        class_name="function", module="builtins", config="exec", registered_name="function"
    ),
    "a download": lambda: instead(
        class_name="function", module="keras.utils", config="get_file", registered_name="get_file"
    ),
    "a saved graph": lambda: instead(
        class_name="TFSMLayer",
        module="keras.layers",
        config={"filepath": str(directory)},
        registered_name=None,
    ),
    "an operation": lambda: instead(
        class_name="TFOpLambda",
        module="tf_keras.src.layers.core.tf_op_layer",
        config={**call, "function": "io.write_file"},
        registered_name="TFOpLambda",
    ),
    "words of a file": vocabulary_of_a_file,
    "words of a file by a registered name": lambda: as_an_optimizer_of_keras(
        config={"vocabulary": str(SECRET), "vocabulary_size": None}
    ),
    "an operation by a registered name": lambda: as_an_optimizer_of_keras(
        class_name="TFOpLambda", config={"function": "io.read_file"}
    ),
    "parts that are all zeros": lambda: changed(
        saved(plain()), packed=DEFLATED, **{"assets/zeros": b"\0" * (16 << 20)}
    ),
    "parts that are larger than they say": lambda: understated(packed_zeros()),
    "weights that take no room": weights_of_zeros,
    "long metadata": lambda: changed(saved(plain()), packed=DEFLATED, **{"metadata.json": LONG}),
    "long metadata by another packing": lambda: changed(
        saved(plain()), packed=zipfile.ZIP_LZMA, **{"metadata.json": LONG}
    ),
    "deep metadata": lambda: changed(saved(plain()), **{"metadata.json": b"[" * 100_000}),
    "deep configuration": lambda: changed(saved(plain()), **{"config.json": b"[" * 100_000}),
    "metadata with a password": lambda: encrypted(saved(plain())),
    "weights by a link": lambda: elsewhere("link"),
    "weights outside": lambda: elsewhere("external"),
    "virtual weights": lambda: elsewhere("virtual"),
    "another file": lambda: changed(saved(plain()), **{"evil.py": b"x"}),
    "pickled weights": lambda: changed(saved(plain()), **{"model.weights.npz": b"x"}),
    "legacy": legacy,
    "nothing": lambda: b"PK",
}


def load(name, data, **given):
    with Volume(lambda: options) as volume:
        volume.make_directory(("runs", "hostile", "model"), parents=True, exist_ok=True)
        volume.write_file(("runs", "hostile", "model", f"{name}.keras"), data)
    TRACE.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        model = load_model(options, "hostile", name, **given)
        outcome = "loaded"
        if "words" not in name:
            model(np.zeros((2, *model.input_shape[1:]), "f4"))
    except Exception as error:  # noqa: BLE001 - the test checks it
        outcome = f"{type(error).__name__}: {error}"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > MAX_KIB:
        outcome = f"took memory; {outcome}"
    return outcome, TRACE.exists()


if __name__ == "__main__":
    made = {name: make() for name, make in {**HARMLESS, **HOSTILE}.items()}
    found = {name: load(name, data) for name, data in made.items()}
    found["given"] = load("not given", made["not given"], custom_objects={"Given": Given})
    found["trusted"] = load("lambda", made["lambda"], trust=True)
    print(json.dumps({"harmless": list(HARMLESS), "hostile": list(HOSTILE), "found": found}))
