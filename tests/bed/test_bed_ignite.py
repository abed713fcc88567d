"""Ignite on the bed: nodes leave and join as their hosts fail and recover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.settings.options import ConnectOptions
from tests.bed.bed import Bed, BedKind
from tests.waiting import until


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Iterator[Bed]:
    with Bed.up(root_dir=tmp_path_factory.mktemp("ignite-bed"), restart_node=True) as bed:
        yield bed


def await_servers(bed: Bed, at: int, expected: set[str]) -> None:
    """Wait until a host's node sees exactly these hosts' nodes as its cluster."""

    def seen() -> set[str]:
        with connect(ConnectOptions(endpoints=(bed.hosts[at].endpoint,))) as client:
            names = {endpoint.host for node in client.nodes() for endpoint in node.endpoints}
        return names & {host.address for host in bed.hosts}

    addresses = {host.address for host in bed.hosts if host.name in expected}
    until(lambda: seen() == addresses, what=lambda: f"{sorted(expected)}, not {seen()}")


def test_each_host_has_a_node_and_a_host_can_be_added(bed):
    with connect(bed.connect_options) as client:
        assert len(client.nodes()) == len(bed.hosts) == 3
        cache = client.create_cache(CacheConfig(name="ROWS", backups=1))
        cache.put_all({key: key for key in range(100)})
        assert cache.size() == 100
    added = bed.add_host()
    assert added.name == "bed4"
    await_servers(bed, 0, {"bed1", "bed2", "bed3", "bed4"})
    with connect(bed.connect_options) as client:  # rows of moving partitions are counted twice
        until(lambda: client.cache("ROWS").size() == 100, what="100 rows")
    if bed.kind is BedKind.NAMESPACES:
        assert bed.ssh(added, "getent hosts bed1").stdout.split()[0] == bed.hosts[0].address
        assert bed.ssh(bed.hosts[0], "getent hosts bed4").stdout.split()[0] == added.address
    added.kill_node()
    assert added.service_pid("node") is None
    await_servers(bed, 0, {"bed1", "bed2", "bed3"})


@pytest.mark.nightly
def test_a_node_that_ends_by_itself_is_started_again(bed):
    """Nightly. No shorter one: no other test waits until the bed starts a node again."""
    host = bed.hosts[2]
    before = host.service_log("node")
    assert host.run(["kill", "-TERM", str(host.service_pid("node"))]).returncode == 0
    until(lambda: host.service_log("node") != before, what="another start")
    host.await_node(3)
    await_servers(bed, 0, {"bed1", "bed2", "bed3"})


def test_a_host_that_is_cut_off_is_missed_and_comes_back(bed):
    if bed.kind is not BedKind.NAMESPACES:
        pytest.skip(f"no faults of the link on {bed.kind.value}")
    host = bed.hosts[1]
    host.cable_out()
    await_servers(bed, 0, {"bed1", "bed3"})
    host.cable_in()
    # The node may have exited and been restarted, or it may have formed its own cluster, which would persist.
    host.kill_node()
    host.start_node()
    await_servers(bed, 0, {"bed1", "bed2", "bed3"})
    await_servers(bed, 1, {"bed1", "bed2", "bed3"})
