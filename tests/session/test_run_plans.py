"""Tests of where workers of another generation may run, with real nodes, and pipes instead of SSH."""

from __future__ import annotations

import sys

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session.run_plans import plan_again
from ignite_tf_magic.settings.options import Config, HostOptions

CACHE = "RUN_PLANS"


class FarReach(Reach):
    """Reaches SSH hosts through a pipe."""

    def _new(self, host: HostRecord) -> Host:
        return Host(host.name, PipeTransport(), python=sys.executable, root=str(self.root))


@pytest.fixture
def client(ignite):
    with connect(ignite.connect_options) as opened:
        cache = opened.get_or_create_cache(CacheConfig(CACHE))
        cache.put_all({key: key for key in range(100)})
        yield opened
        opened.destroy_cache(CACHE)


@pytest.mark.parametrize(("package", "host"), [("0" * 64, "far"), (None, "localhost")])
def test_a_run_that_began_on_this_machine_alone_stays_there(ignite, client, tmp_path, package, host):
    """All nodes that exist now are on another host, to which the package would have to be sent."""
    nodes = tuple(str(node.node_id) for node in client.nodes())
    config = Config(hosts=(HostOptions("far", node_ids=nodes, ssh="far"),))
    here = HostRecord("localhost", python=sys.executable)
    spec = RunSpec(CACHE, package=package)
    record = RunRecord("mnist-1", spec, RunState.RESTARTING, 1.0, hosts=(here,))
    plan = plan_again(client, ignite.connect_options, config, record, {}, FarReach(tmp_path))
    assert [seat.host for seat in plan.seats] == [host]
