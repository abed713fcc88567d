"""Pages of ignite-tf.toml and of variables of the environment, from the code that reads them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from docs.json_shapes import PACKAGE, parsed
from docs.markdown import cell, table, words
from ignite_tf_magic.dataset import options as dataset_options
from ignite_tf_magic.settings import options as config
from ignite_tf_magic.settings.toml_tables import TomlTable

# ignite-tf.toml


@dataclass(frozen=True, slots=True)
class _Recorder(TomlTable):
    """A table that notes which keys are read from it, and as what."""

    noted: dict[str, dict[str, str]] = field(default_factory=dict)

    def allow(self, *known: str) -> None:
        for key in known:
            self.noted.setdefault(self.name, {}).setdefault(key, "")

    def table(self, key: str) -> TomlTable:
        name = f"{self.name}.{key}" if self.name else key
        return _Recorder(self.file, name, self.values.get(key, {}), self.noted)

    def _note(self, key: str, kind: str) -> None:
        noted = self.noted.setdefault(self.name, {})
        noted[key] = noted.get(key) or kind  # what reads a path reads a text first of all


def _recording(method: str, kind: str) -> None:
    def read(self: _Recorder, key: str, **given: Any) -> Any:
        self._note(key, kind)
        return getattr(TomlTable, method)(self, key, **given)

    setattr(_Recorder, method, read)


for _method, _kind in {
    "text": "text",
    "word": "name",
    "words": "list of names",
    "path": "file",
    "flag": "true or false",
    "count": "whole number",
    "seconds": "seconds",
    "num_bytes": 'size, as "500MB"',
    "port_range": '"FIRST-LAST"',
}.items():
    _recording(_method, _kind)


# What keys of TOML are called in the dataclasses that hold them.
_ATTRIBUTES = {"log_limit": "log_limit_bytes", "cert_password": "key_password"}
_HOLDERS: Mapping[str, tuple[type, ...]] = {
    "cluster": (config.ConnectOptions, config.TlsOptions),
    "launch": (config.LaunchOptions,),
    "ssh": (config.SshConfig,),
    "hosts.NAME": (config.HostOptions,),
}
_KINDS = {"check_hostname": "true or false", "on_rebalance": "text"}
# Keys that the dataclasses say nothing of.
_TOLD = {
    (
        "cluster",
        "addresses",
    ): 'Nodes to ask first, as ["db1:10800", "db2:10800"]; the others are learnt from them.',
    ("cluster", "username"): "For a cluster with authentication.",
    ("cluster", "password"): "Its password; the file then needs mode 600.",
    ("cluster", "credentials_file"): "JSON file, mode 600, that may hold the keys from username on.",
    ("launch", "ports"): "First and last port that workers may listen on; without them each host chooses.",
    ("launch", "deadline_s"): "How long a run may take, restarts included; without it there is no limit.",
    (
        "launch",
        "warm_s",
    ): "How long hosts keep processes ready for the next run; 0 keeps none. Without it 600 in "
    "notebooks, 0 elsewhere.",
    ("launch", "on_rebalance"): 'What a run does when partitions have moved: "restart" or "ignore".',
    ("ssh", "connect_timeout_s"): "How long a host may take to answer.",
}
_TABLES = {
    "cluster": "Where Ignite is. `IGNITE_TF_CLUSTER` comes before `addresses`, unless `-c` names the file.",
    "launch": "How runs are started and kept alive.",
    "ssh": "How hosts are reached. What is not here is as `ssh` finds it in `~/.ssh/config`.",
    "hosts.NAME": "What Ignite does not tell of a machine. NAME is what you call it.",
}


def config_keys() -> dict[str, dict[str, str]]:
    """Return the keys of ignite-tf.toml by their tables, each with what its value is."""
    top = _Recorder(Path("ignite-tf.toml"), "", {"hosts": {"NAME": {}}})
    config._config(top, (), is_found=True)
    return {name: keys for name, keys in top.noted.items() if name in _HOLDERS}


def configuration_page() -> str:
    """Return the page of ignite-tf.toml."""
    parts = [
        "# ignite-tf.toml\n",
        '```toml\n[cluster]\naddresses = ["db1:10800", "db2:10800"]\n```\n',
        f"`{config.CONFIG_FILE}` is looked for in the working directory, then in the user's configuration directory "
        "(on Linux `~/.config/ignite_tf_magic`); `-c FILE` names another one, or Ignite's Spring XML. Names of files "
        "are relative to its own directory. A key that is not known is an error that names the nearest one. How it is "
        "used: [cluster.md](../cluster.md#setting-up).\n",
    ]
    for name, keys in config_keys().items():
        rows = [[f"`{key}`", words(_kind_of(key, kind)), _default_of(name, key), words(_key_words(name, key))]
                for key, kind in keys.items()]  # fmt: skip
        parts += [
            f"## [{name}]\n",
            f"{_TABLES[name]}\n",
            table(["key", "value", "default", "what it says"], rows),
        ]
    return "\n".join(parts)


def _kind_of(key: str, kind: str) -> str:
    return kind or _KINDS[key]


def _default_of(name: str, key: str) -> str:
    attribute = _ATTRIBUTES.get(key, key)
    for holder in _HOLDERS[name]:
        for each in fields(holder):
            if each.name == attribute and each.default not in (MISSING, None, ()):
                value = getattr(each.default, "value", each.default)
                if attribute.endswith("_bytes"):
                    return f"{value >> 20:,} MiB"
                return f"`{str(value).lower() if isinstance(value, bool) else value}`"
    return ""


def _key_words(name: str, key: str) -> str:
    if (name, key) in _TOLD:
        return _TOLD[name, key]
    attribute = _ATTRIBUTES.get(key, key)
    for holder in _HOLDERS[name]:
        if attribute in (told := section(holder.__doc__ or "", "Attributes")):
            return told[attribute]
    raise LookupError(f"[{name}] {key} has no words: give its attribute some, or docs/reference.py")


def section(docstring: str, name: str) -> dict[str, str]:
    """Read a section of a Google docstring: what it says of each name."""
    told: dict[str, list[str]] = {}
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{name}:" not in lines:
        return {}
    current = ""
    for line in lines[lines.index(f"{name}:") + 1 :]:
        if line.strip() and not line.startswith(" "):
            break
        if match := re.match(r" {4}(\w+): (.*)", line):
            current = match[1]
            told[current] = [match[2]]
        elif current:
            told[current].append(line.strip())
    return {each: " ".join(filter(None, words)) for each, words in told.items()}


# Variables of the environment

_VARIABLE = re.compile(r"(IGNITE_TF|IGNITE_DATASET|IGFS)_[A-Z][A-Z_]*[A-Z]")
_SET_BY_YOU = {
    "IGNITE_TF_CLUSTER": "The cluster: `HOST:PORT,HOST:PORT`. Comes before `addresses` of ignite-tf.toml.",
    "IGNITE_TF_HOME": "Where runs and embedded nodes lie on this machine, instead of the user's state directory.",
    "IGNITE_TF_IGNITE_VERSION": "Version of Ignite for embedded nodes.",
    "IGNITE_TF_MAVEN_REPOSITORY": "Where the jars of embedded nodes are fetched from, instead of Maven Central.",
    "IGNITE_TF_VIEW": "`text`: a cell shows its run as text below a picture; `widget`: as a widget, whatever the front "
    "end seems to be.",
    "IGNITE_TF_TIMINGS_DIVISOR": "Divides the waiting times of runs, from 1 to 100: for campaigns of faults.",
    "IGFS_HOST": "A node of the cluster whose file system `igfs:///` means.",
    "IGFS_PORT": "Its thin client port; 10500, that of Ignite's IGFS, is taken for 10800.",
    "IGFS_FS_NAME": "Which of the cluster's file systems.",
}
_OF_OTHERS = {
    "JAVA_HOME": "The Java of embedded nodes.",
    "TENSORBOARD_PROXY_URL": "How a browser reaches a TensorBoard here: a URL with %PORT% in the port's place.",
    "NO_COLOR": "Output without colours.",
}
_SET_BY_RUNS = {
    "IGNITE_TF_RUN_ID": "The run's id.",
    "IGNITE_TF_RUN_URI": "The run's directory in igfs: `igfs:///runs/RUN_ID`.",
    "IGNITE_TF_RUN_DIR": "A directory of the run on this host.",
    "IGNITE_TF_STRATEGY": "How the run's tasks work together.",
    "IGNITE_TF_COMMUNICATION": "How tensors go from worker to worker.",
    "IGNITE_TF_STOP_ON_NAN": "Set where the run fails when its loss is no number.",
    "IGNITE_TF_COMPAT": "Set where `tensorflow.contrib.ignite` may be imported.",
    "IGNITE_TF_TUNNEL": "Set where tasks reach each other through SSH alone.",
}
# What our processes tell each other; no script needs them.
_INTERNAL = frozenset(
    {
        "IGNITE_TF_ADDRESS",
        "IGNITE_TF_AFTER_IMPORT",
        "IGNITE_TF_CLAIM_FILE",
        "IGNITE_TF_JOB",
        "IGNITE_TF_KEEPER",
        "IGNITE_TF_LOOPBACK_PORTS",
        "IGNITE_TF_PHASE_FILE",
    }
)
_OF_A_DATASET = {
    "credentials_file": "JSON file with username, password, certfile, keyfile, cert_password, cafile, check_hostname.",
    "assigned_cache": "The run's cache, of which alone a part is assigned.",
    "assignment_file": "Where the run has noted which rows the workers have.",
}


def variables_in_code() -> set[str]:
    """Return the variables of ours that stand in the package's code, whole or as `environment(PREFIX, names)`."""
    found = set(dataset_variables())
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and _VARIABLE.fullmatch(node.value)
            ):
                found.add(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "environment":
                found |= set(_asked_for(node))
    return found


def _asked_for(call: ast.Call) -> Iterator[str]:
    prefix, names = call.args[:2]
    if isinstance(prefix, ast.Constant) and prefix.value and isinstance(names, ast.List):
        yield from (f"{prefix.value}{ast.literal_eval(name).upper()}" for name in names.elts)


def dataset_variables() -> dict[str, str]:
    """Return what takes the place of the arguments of `IgniteDataset`."""
    arguments = section(_class_docstring("dataset/ignite.py", "IgniteDataset"), "Args")
    return {
        f"IGNITE_DATASET_{name.upper()}": _OF_A_DATASET.get(name) or arguments[name]
        for name in dataset_options._VARIABLES
    }


def _class_docstring(module: str, name: str) -> str:
    classes = (each for each in parsed(PACKAGE / module).body if isinstance(each, ast.ClassDef))
    return ast.get_docstring(next(each for each in classes if each.name == name)) or ""


def environment_page() -> str:
    """Return the page of variables; fails on one that nobody has given words."""
    of_datasets = dataset_variables()
    told = set(_SET_BY_YOU) | set(_SET_BY_RUNS) | _INTERNAL | set(of_datasets)
    if unknown := variables_in_code() - told:
        raise LookupError(f"docs/reference.py has no words for {', '.join(sorted(unknown))}")
    if gone := told - variables_in_code():
        raise LookupError(f"docs/reference.py tells of {', '.join(sorted(gone))}, and no code reads it")

    def rows(named: Mapping[str, str]) -> str:
        return table(
            ["variable", "what it says"], [[f"`{name}`", cell(what)] for name, what in named.items()]
        )

    return "\n".join(
        [
            "# Environment variables\n",
            "    IGNITE_TF_CLUSTER=db1:10800,db2:10800 ignite-tf ps\n",
            "## Set by you\n",
            rows(_SET_BY_YOU),
            "Of others, and heeded:\n",
            rows(_OF_OTHERS),
            "## Set in the workers of a run\n",
            "Beside `TF_CONFIG`, and those of `IgniteDataset` below.\n",
            rows(_SET_BY_RUNS),
            "## IgniteDataset\n",
            "Each takes the place of the argument of that name, so that one script reads a part of its own on "
            "each worker.\n",
            rows({name: what.replace("*", "\\*") for name, what in of_datasets.items()}),
        ]
    )
