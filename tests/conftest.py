"""The cluster that all tests of a session share, and clusters of their own for tests that do harm."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from ignite_tf_magic.embedded import EmbeddedCluster, EmbeddedOptions, Lifetime, down, ensure_up, nodes
from ignite_tf_magic.embedded.java import find_java
from ignite_tf_magic.embedded.record import read_cluster, take_end
from ignite_tf_magic.errors import EmbeddedError
from tests.bed.bed import BedKind

if TYPE_CHECKING:
    from ignite_tf_magic.client.client import Client

HEAP = "256m"

# Machines are busy: how long an example takes says nothing.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# Tests interrupt what they start, which would not listen where all of this was begun in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    try:
        java = str(find_java(EmbeddedOptions().resolved_version()))
    except EmbeddedError as error:  # the tests that need nodes will fail with it
        java = str(error).splitlines()[0]
    ignite = f"Apache Ignite {EmbeddedOptions().resolved_version()} (embedded), {java}"
    return [ignite, f"test bed: {BedKind.best().value}"]


def _private_tmp(factory: pytest.TempPathFactory, name: str) -> Path:
    path = factory.mktemp(name)
    path.chmod(0o700)
    return path


@pytest.fixture(scope="session", autouse=True)
def quickly_compiled_nodes() -> Iterator[None]:
    """Nodes of tests live for minutes at most, of which the second compiler would take a third."""
    java_command = nodes.java_command

    def quick(*given: Any) -> list[str]:
        java, *rest = java_command(*given)
        return [java, "-XX:TieredStopAtLevel=1", *rest]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "java_command", quick)
        yield


@pytest.fixture(scope="session")
def ignite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Three nodes for everybody. A test uses caches of its own names and leaves the nodes alone."""
    home = _private_tmp(tmp_path_factory, "ignite")
    try:
        # On a busy machine tests that have nodes of their own take longer than the idle time that users get.
        options = EmbeddedOptions(heap=HEAP, idle_timeout_s=2 * 3600)
        yield ensure_up(options, Lifetime.UNTIL_IDLE, home=home).cluster
        left = read_cluster(home)
        assert left is not None, f"the nodes have been ended: {take_end(home)}"
        assert not left.deaths(), "\n".join(map(str, left.deaths()))
    finally:
        down(home)


@pytest.fixture
def no_runs_left(ignite: EmbeddedCluster) -> Iterator[None]:
    """Have the shared cluster forget all runs after the test: lost ones are listed for a day."""
    from ignite_tf_magic.client.client import connect
    from ignite_tf_magic.runs.registry.registry import Registry

    yield
    with connect(ignite.connect_options) as client, Registry(client) as registry:
        for entry in registry.runs():
            registry.remove(str(entry.record["run_id"]))


@pytest.fixture
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EmbeddedCluster]]:
    """Start clusters that end with the test: `new_cluster(num_nodes=2, persist=True)`."""
    with ExitStack() as ends:

        def start(**options: Any) -> EmbeddedCluster:
            home = _private_tmp(tmp_path_factory, "cluster")
            ends.callback(down, home, delete_data=True)
            asked = EmbeddedOptions(**{"heap": HEAP, **options})
            return ensure_up(asked, Lifetime.UNTIL_IDLE, home=home).cluster

        yield start


@pytest.fixture
def client(ignite: EmbeddedCluster) -> Iterator[Client]:
    """A client of the shared cluster."""
    from ignite_tf_magic.client.client import connect

    with connect(ignite.connect_options) as connected:
        yield connected
