"""Caches with their own affinity function or node filter: only the cluster knows a key's partition."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.java_client import java_command
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.follow import follow
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.protocol import connection
from ignite_tf_magic.protocol.ops import Feature
from ignite_tf_magic.runs.hosts.counting import count_cache
from ignite_tf_magic.runs.record import HostRecord, RunSpec
from ignite_tf_magic.runs.supervision.counted_plans import plan_counted
from ignite_tf_magic.runs.supervision.planning import LaunchFacts
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from tests.client.rows import put_all
from tests.training.processes import free_ports

SOURCE = Path(__file__).parent / "java" / "OwnAffinity.java"
ROWS = 3_000
CACHES = ("FUNCTION", "MAPPER", "FILTERED")


class TwoNodes:
    """The two nodes of OwnAffinity.java."""

    def __init__(self, work_directory: Path) -> None:
        ports = free_ports(4)
        self.port = ports[0]
        self.options = ConnectOptions(tuple(Endpoint("127.0.0.1", port) for port in ports[:2]))
        pipe = subprocess.PIPE
        command = [*java_command(print, SOURCE), *map(str, ports), str(work_directory)]
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        assert self._told() == "filled"

    def stop_second(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        assert self._told() == "stopped"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    nodes = TwoNodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.close()


@pytest.fixture(params=["told of all", "told of the default alone"])
def client(request, monkeypatch, cluster):
    """A client of current nodes, and of older nodes, which do not report the owners of such caches."""
    if request.param != "told of all":
        offered = tuple(feature for feature in Feature if feature is not Feature.ALL_AFFINITY_MAPPINGS)
        monkeypatch.setattr(connection, "_OFFERED", offered)
    with connect(cluster.options) as connected:
        yield connected


@pytest.mark.parametrize("name", CACHES)
def test_each_row_is_read_once(cluster, client, name):
    keys = IgniteDataset(name, port=cluster.port).arrays()["key"]
    np.testing.assert_array_equal(np.sort(keys), np.arange(ROWS))
    cache = client.cache(name)
    assert [cache.get(key).fields["half"] for key in (0, 1_001, ROWS - 1)] == [0.0, 500.5, (ROWS - 1) / 2]


@pytest.mark.parametrize("node", [0, 1])
def test_rows_that_a_condition_picks_are_read_through_any_node(cluster, node):
    """Only the second node has the cache."""
    rows = IgniteDataset(
        "FILTERED", port=cluster.options.endpoints[node].port, where="_KEY < ?", where_args=[100]
    )
    assert sorted(rows.arrays()["key"].tolist()) == list(range(100))


def test_a_partition_holds_what_the_function_says(cluster):
    for partition in range(3):
        keys = IgniteDataset("FUNCTION", port=cluster.port, part=partition).arrays()["key"]
        assert sorted(keys.tolist()) == list(range(1_000 * partition, 1_000 * (partition + 1)))
    with connect(cluster.options) as client:
        cache = client.cache("FUNCTION")
        assert cache.partition_map().num_partitions == 12
        assert {size.rows for size in cache.partition_stats([0, 1, 2]).values()} == {1_000}


@pytest.mark.parametrize("name", CACHES)
def test_workers_are_told_the_rows_that_they_read(cluster, name):
    num_workers = 1 if name == "FILTERED" else 2
    with connect(cluster.options) as client:
        cache = count_cache(client, name)
        hosts = {
            node: HostRecord(f"host-{number}") for number, node in enumerate(sorted(cache.nodes, key=str))
        }
        plan = plan_counted(client, RunSpec(name, num_workers), LaunchFacts(cache, hosts))
    read = [
        len(IgniteDataset(name, port=cluster.port, part=seat.partitions).arrays()["key"])
        for seat in plan.seats
    ]
    assert read == [seat.rows for seat in plan.seats]
    assert len(read) == num_workers and sum(read) == ROWS


def test_rows_written_by_key_are_found_by_key(client):
    cache = client.cache("MAPPER")
    added = range(ROWS, ROWS + 50)
    try:
        put_all(cache, [(key, b"row") for key in added])
        assert cache.get_all(added) == dict.fromkeys(added, b"row")
        assert cache.size() == ROWS + 50
    finally:
        cache.remove_all(added)


def test_a_part_of_it_cannot_be_followed_and_all_of_it_can(cluster):
    with connect(cluster.options) as client:
        cache = client.cache("FUNCTION")
        with (
            follow(cache, partitions=[0]) as following,
            pytest.raises(
                ConfigError,
                match=r"FUNCTION.*not map keys to partitions as Ignite does by default.*follow all",
            ),
        ):
            next(following.pages())
        found = 0
        with follow(cache) as following:
            for followed in following.pages():
                found += followed.page.num_rows
                if found == ROWS:
                    break


@pytest.mark.faults
@pytest.mark.parametrize("offered", [tuple(Feature), (Feature.NODE_ENDPOINTS, Feature.QUERY_PARTITIONS)])
def test_a_node_that_goes_takes_rows_along_and_it_is_said(tmp_path, monkeypatch, offered):
    monkeypatch.setattr(connection, "_OFFERED", offered)
    nodes = TwoNodes(tmp_path)
    try:
        rows = IgniteDataset("FUNCTION", port=nodes.port)
        assert len(rows.arrays()["key"]) == ROWS
        nodes.stop_second()
        with pytest.raises(Exception, match=r"cache 'FUNCTION'.*lost"):
            rows.arrays()
    finally:
        nodes.close()
