"""Configuration of the test suite: test sizes, processes, shared Ignite nodes, and the summary at the end.

Marks define the sizes:

- `smoke`: one test for each promise of the README, in under 90 seconds (`make smoke`).
- no mark: `make test`, before each commit.
- `nightly`: long campaigns, and tests for which a shorter related test exists (`make test-all`). The docstring of a
  nightly test names the shorter test, or says why there is none.

`make` runs the tests in one process per core (pytest-xdist). Plain `pytest` runs them in a single process, where a
debugger works. A test gives its caches on the shared nodes (`ignite`) names of its own, and never stops these nodes.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from ignite_tf_magic.embedded import EmbeddedCluster, EmbeddedOptions, Lifetime, down, ensure_up, nodes
from ignite_tf_magic.embedded.jars import resolve_jars
from ignite_tf_magic.embedded.java import find_java
from ignite_tf_magic.embedded.record import read_cluster, take_end
from ignite_tf_magic.errors import EmbeddedError
from tests.bed.bed import BedKind
from tests.leftovers import end_leftovers
from tests.stamp import describe_stamp, write_stamp

if TYPE_CHECKING:
    from ignite_tf_magic.client.client import Client

HEAP = "256m"
TESTS = Path(__file__).parent
# Directories with the slowest tests. They start first; otherwise one process would run them alone at the end.
SLOW_FIRST = {
    name: rank
    for rank, name in enumerate(
        ("ssh", "notebooks", "browser", "session", "ui", "training", "runs", "client", "dataset")
    )
}
# The tests of each group run in one process, because they share resources: hosts, or nodes on which they see all runs.
TOGETHER = {"ssh": "bed", **dict.fromkeys(("browser", "notebooks", "session", "ui"), "alone")}
SHARED = "PYTEST_SHARED_DIRECTORY"
"""Names the directory of a test session. pytest makes it; all that the session starts inherits the variable."""
_NEEDED_BYTES = 2 << 30
_HAS_MADE = pytest.StashKey[bool]()
_BEGAN = pytest.StashKey[float]()
_FAULTS = pytest.StashKey[list[str]]()

# nbformat imports jsonschema. If this module is installed, jsonschema builds a grammar of IRIs with it, which takes
# 3 s in each process.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# No deadline: on a busy machine the duration of an example means nothing.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# Tests send SIGINT to child processes. If the suite was started in the background, children would inherit "ignore".
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stamp", action="store_true", help="note that these tests are green: make nightly")


def pytest_configure(config: pytest.Config) -> None:
    """Create the session directory, which holds all temporary files, also those of child processes."""
    config.stash[_HAS_MADE] = SHARED not in os.environ
    if config.stash[_HAS_MADE]:
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if free < _NEEDED_BYTES:
            raise pytest.UsageError(
                f"the tests need {_NEEDED_BYTES >> 30} GiB in {tempfile.gettempdir()}, where "
                f"{free / 2**30:.1f} GiB are free; make room there, or set TMPDIR to another directory"
            )
        directory = tempfile.mkdtemp(prefix="itf-")
        Path(directory).chmod(0o711)  # some tests let other accounts read directories below it
        os.environ[SHARED] = os.environ["TMPDIR"] = tempfile.tempdir = directory
        _configure_user(Path(directory, "config"))


def _configure_user(config_home: Path) -> None:
    """Isolate the tests from the configuration of the user who runs them, and turn off warm starts."""
    os.environ["XDG_CONFIG_HOME"] = str(config_home)
    (config_home / "ignite_tf_magic").mkdir(mode=0o700, parents=True)
    (config_home / "ignite_tf_magic" / "ignite-tf.toml").write_text("[launch]\nwarm_s = 0\n")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Look for Java and Ignite once, before pytest-xdist starts processes that would each fail without them."""
    session.config.stash[_BEGAN] = time.monotonic()
    if session.config.stash[_HAS_MADE] and session.config.getoption("numprocesses", None):
        version = EmbeddedOptions().resolved_version()
        try:
            find_java(version)
            resolve_jars(version, print)
        except EmbeddedError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> list[str]:
    try:
        java = str(find_java(EmbeddedOptions().resolved_version()))
    except EmbeddedError as error:  # tests that need nodes will fail with the same error
        java = str(error).splitlines()[0]
    ignite = f"Apache Ignite {EmbeddedOptions().resolved_version()} (embedded), {java}"
    return [ignite, f"test bed: {BedKind.best().value}"]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Use the argument's name for bytes: an archive's bytes contain its time, but all processes need equal test ids."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Keep the tests of a file in one process (`--dist loadgroup`), and start with the slow directories."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            file = item.path.relative_to(TESTS).with_suffix("")
            item.add_marker(pytest.mark.xdist_group(TOGETHER.get(file.parts[0], file.as_posix())))
    yield  # pytest-xdist reads the groups, and pytest-randomly shuffles
    items.sort(key=lambda item: SLOW_FIRST.get(item.path.relative_to(TESTS).parts[0], len(SLOW_FIRST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Raise UsageError if pytest-xdist did not see the groups, as happens with a pytest that is too new for it."""
    if session.config.getoption("loadgroup", None) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError(
            "pytest-xdist does not see the groups of tests; see setup.cfg for versions that do"
        )


@pytest.hookimpl(trylast=True)  # after pytest-xdist has ended its processes
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Stop the shared nodes and all leftover processes, also after Ctrl-C. Fail the session if tests left some."""
    if not session.config.stash[_HAS_MADE]:
        return
    directory = Path(os.environ[SHARED])
    faults = [
        fault for home in sorted(directory.glob("*/cluster.json")) for fault in _end_shared_nodes(home.parent)
    ]
    left = end_leftovers(directory)
    if exitstatus != pytest.ExitCode.INTERRUPTED:
        faults += [f"left running by a test, and ended now: {each}" for each in left]
    if os.environ.get("CI"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        skipped = reporter.stats.get("skipped", []) if reporter else []
        faults += [f"skipped, which CI does not accept: {report.nodeid}" for report in skipped]
    if faults and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[_FAULTS] = faults
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.config.stash[_FAULTS] = [*faults, f"files of the failed tests: {directory}"]
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _end_shared_nodes(home: Path) -> list[str]:
    """Stop the nodes and return a sentence for each that died earlier. Tests may kill those of `own_nodes`."""
    cluster = read_cluster(home)
    deaths = [str(death) for death in cluster.deaths()] if cluster else [f"the nodes ended: {take_end(home)}"]
    down(home)
    return [] if home.name.startswith("own-") else deaths


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the faults that belong to no single test, and the age of the last green `make nightly`."""
    for fault in config.stash.get(_FAULTS, []):
        terminalreporter.write_line(fault, red=True)
    if config.getoption("stamp") and exitstatus == pytest.ExitCode.OK:
        num_passed = len(terminalreporter.stats.get("passed", []))
        terminalreporter.write_line(write_stamp(num_passed, time.monotonic() - config.stash[_BEGAN]))
    elif config.getoption("numprocesses", None):
        terminalreporter.write_line(describe_stamp())


def shared_directory() -> Path:
    """The directory of the test session, shared by its processes."""
    return Path(os.environ[SHARED])


def _private_tmp(factory: pytest.TempPathFactory, name: str) -> Path:
    path = factory.mktemp(name)
    path.chmod(0o700)
    return path


@pytest.fixture(scope="session", autouse=True)
def quickly_compiled_nodes() -> Iterator[None]:
    """Start nodes without Java's second compiler, which would use a third of the CPU time of such short runs."""
    java_command = nodes.java_command

    def quick(*given: Any) -> list[str]:
        java, *rest = java_command(*given)
        return [java, "-XX:TieredStopAtLevel=1", *rest]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "java_command", quick)
        yield


def _shared_nodes(name: str) -> EmbeddedCluster:
    """Start three nodes, or find those that another process of the session started. The session's end stops them."""
    # On a busy machine, tests with nodes of their own take longer than the default idle timeout.
    options = EmbeddedOptions(heap=HEAP, idle_timeout_s=2 * 3600)
    return ensure_up(options, Lifetime.UNTIL_IDLE, home=shared_directory() / name).cluster


@pytest.fixture(scope="session")
def ignite() -> EmbeddedCluster:
    """The nodes that all processes of the test session share."""
    return _shared_nodes("ignite")


@pytest.fixture(scope="session")
def alone() -> EmbeddedCluster:
    """Nodes for tests that list or remove all runs and caches of a cluster. A single process runs these tests."""
    return _shared_nodes("alone")


@pytest.fixture(scope="module", autouse=True)
def caches_of_the_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Destroy the caches that the tests of a file created: new caches whose names are string literals in the file."""
    if not any("ignite" in item.fixturenames for item in request.session.items if item.path == request.path):
        yield
        return
    from ignite_tf_magic.client.client import connect

    cluster: EmbeddedCluster = request.getfixturevalue("ignite")
    tree = ast.parse(request.path.read_text(encoding="utf-8"))
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    with connect(cluster.connect_options) as client:
        before = set(client.cache_names())
    yield
    with connect(cluster.connect_options) as client:
        for name in set(client.cache_names()) - before:
            if name.removeprefix("SQL_PUBLIC_") in strings:
                client.destroy_cache(name)


@pytest.fixture(scope="module", autouse=True)
def file_systems_of_the_file() -> Iterator[None]:
    """Clear igfs file system instances after each file: fsspec caches them by arguments, not by cluster."""
    yield
    if module := sys.modules.get("ignite_tf_magic.igfs.filesystem"):
        module.IgfsFileSystem.clear_instance_cache()


@pytest.fixture
def no_runs_left(ignite: EmbeddedCluster) -> Iterator[None]:
    """Make the shared cluster forget all runs before and after the test. Lost runs stay listed for a day."""
    _forget_runs(ignite)
    yield
    _forget_runs(ignite)


def _forget_runs(cluster: EmbeddedCluster) -> None:
    from ignite_tf_magic.client.client import connect
    from ignite_tf_magic.runs.registry.registry import Registry

    with connect(cluster.connect_options) as client, Registry(client) as registry:
        for entry in registry.runs():
            registry.remove(str(entry.record["run_id"]))


@pytest.fixture
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EmbeddedCluster]]:
    """Start clusters that are stopped with the test: `new_cluster(num_nodes=2, persist=True)`."""
    with ExitStack() as ends:

        def start(**options: Any) -> EmbeddedCluster:
            home = _private_tmp(tmp_path_factory, "cluster")
            ends.callback(down, home, delete_data=True)
            asked = EmbeddedOptions(**{"heap": HEAP, **options})
            return ensure_up(asked, Lifetime.UNTIL_IDLE, home=home).cluster

        yield start


@pytest.fixture
def own_nodes() -> EmbeddedCluster:
    """Three nodes of this process, without caches. A test may kill some; the next test starts them again."""
    return _own_nodes(3)


@pytest.fixture
def own_node() -> EmbeddedCluster:
    """Like `own_nodes`, but a single node."""
    return _own_nodes(1)


def _own_nodes(num_nodes: int) -> EmbeddedCluster:
    from ignite_tf_magic.client.client import connect

    for thread in threading.enumerate():
        if thread.name.startswith("registry-"):
            # A publisher thread of the previous test's run would still write its final record to these nodes.
            thread.join()
    home = shared_directory() / f"own-{num_nodes}-{os.getpid()}"
    options = EmbeddedOptions(num_nodes=num_nodes, heap=HEAP)
    cluster = ensure_up(options, Lifetime.UNTIL_IDLE, home=home).cluster
    with connect(cluster.connect_options) as client:
        for cache in client.cache_names():
            client.destroy_cache(cache)
    return cluster


@pytest.fixture
def client(ignite: EmbeddedCluster) -> Iterator[Client]:
    """A client of the shared cluster."""
    from ignite_tf_magic.client.client import connect

    with connect(ignite.connect_options) as connected:
        yield connected
