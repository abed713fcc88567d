"""Tests of a start while nodes are dead or split off: it warns, and the smaller side refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.settings.options import ConnectOptions
from tests.bed.bed import Host
from tests.ssh.ssh_user import CACHE, load_numbers
from tests.waiting import until

pytestmark = pytest.mark.faults
EXPLAIN = ("start", "--workers", "1", "--explain", CACHE, "job", "python", "-c", "pass")


@contextmanager
def nodes_on_their_own(bed, *hosts: Host) -> Iterator[None]:
    """Restart the nodes of some hosts as separate clusters, as after a network split; restore them afterwards."""
    configs = {host: (host.directory / "ignite.xml").read_text() for host in hosts}
    try:
        for host, whole in configs.items():
            alone = re.sub(r"<list>.*</list>", f"<list><value>{host.address}:47500</value></list>", whole)
            host.kill_node()
            (host.directory / "ignite.xml").write_text(alone)
            host.start_node()
        yield
    finally:
        for host, whole in configs.items():
            host.kill_node()
            (host.directory / "ignite.xml").write_text(whole)
            host.start_node(wait=False)
        for host in hosts:
            host.await_node(len(bed.hosts))
        load_numbers(bed)


def await_nodes(host: Host, num_nodes: int) -> None:
    with connect(ConnectOptions((host.endpoint,))) as client:
        until(lambda: len(client.nodes()) == num_nodes, what=client.nodes)


@pytest.fixture
def job(elsewhere):
    (elsewhere.directory / "job").mkdir()


@pytest.mark.nightly
def test_a_single_node_that_is_left_is_no_cluster_to_start_on(here, elsewhere, bed, namespaces, job, data):
    """Two of three nodes lost the others, so each node has only a part of the rows. A start on any node says so.

    Nightly. Shorter:
    tests/runs/hosts/test_changing_clusters.py::test_a_session_goes_over_to_the_rest_of_the_cluster
    """
    first, second, third = bed.hosts
    with nodes_on_their_own(bed, first, third):
        await_nodes(second, 1)
        for host in (first, second):  # a node that lost the others, and one that has the cluster's data
            others = [each for each in bed.hosts if each is not host]
            elsewhere.configure(bed, cluster={"addresses": [str(each.endpoint) for each in (host, *others)]})
            said = here(*EXPLAIN, code=1)[1]
            assert "1 of 3 Ignite nodes that are configured or were there before are in this cluster" in said
            assert "is a cluster of its own (alone)" in said
            assert "--allow-partial" in said

        shown = here("doctor", CACHE, code=1)[0]
        assert re.search(r"^all +ignite +failed +1 of 3 nodes are in one cluster", shown, re.M)
        assert not re.search(r"^all +ignite +ok", shown, re.M)
