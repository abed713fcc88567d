"""Tests of runs that Python code starts on other hosts."""

from __future__ import annotations

import json

import pytest

from ignite_tf_magic.errors import CacheNotFound
from ignite_tf_magic.session import RunRequest, RunState
from tests.ssh.ssh_user import NUM_ROWS

# Reads the worker's rows with the client alone, without importing TensorFlow.
READ = """
import json, os, socket
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

env = os.environ
endpoint = Endpoint(env["IGNITE_DATASET_HOST"], int(env["IGNITE_DATASET_PORT"]))
ranges = [part.split("-") for part in env["IGNITE_DATASET_PART"].split(",")]
partitions = [p for part in ranges for p in range(int(part[0]), int(part[-1]) + 1)]
with connect(ConnectOptions((endpoint,))) as client:
    cache = client.cache(env["IGNITE_DATASET_ASSIGNED_CACHE"])
    owners, nodes = cache.partition_map().primary_of(), {n.node_id: n.endpoints for n in client.nodes()}
    local = sum(endpoint in nodes[owners[p]] for p in partitions)
    rows = sum(each.rows for each in cache.partition_stats(partitions).values())
print(json.dumps({
    "hostname": socket.gethostname(), "endpoint": endpoint.host, "partitions": partitions,
    "local": local, "rows": rows, "told": json.load(open(env["IGNITE_DATASET_ASSIGNMENT_FILE"])),
}))
"""


def outputs(run):
    text = dict.fromkeys(range(run.info().num_workers), "")
    for chunk in run.follow():
        text[chunk.worker] += chunk.text
    assert run.info().state is RunState.SUCCEEDED, (text, run.failure())
    return [json.loads(text[worker]) for worker in sorted(text)]


@pytest.mark.smoke
@pytest.mark.parametrize("detach", [False, True], ids=["attached", "detached"])
def test_workers_read_from_the_node_of_their_own_host(session, bed, said, detach):
    run = session.start_run(RunRequest("NUMBERS", READ, 3, start_timeout_s=None, detach=detach))
    found = outputs(run)
    hosts = {host.name: host for host in bed.hosts}
    assert run.info().hosts == tuple(hosts)
    for worker, each in zip(run.record().workers, found, strict=True):
        assert each["endpoint"] == hosts[worker.host].address
        assert each["rows"] == worker.rows == each["told"]["rows_by_worker"][worker.worker]
        assert each["local"] == len(each["partitions"])
    if bed.connect_options.endpoints[0].host.startswith("10."):
        assert [each["hostname"] for each in found] == list(hosts)
    assert sum(each["rows"] for each in found) == NUM_ROWS
    partitions = [partition for each in found for partition in each["partitions"]]
    assert sorted(partitions) == list(range(1024))
    assert {seat.local_rows for seat in run.record().order.seats} == {NUM_ROWS // 3}
    assert said == []


def test_an_unknown_cache_starts_nothing(session):
    with pytest.raises(CacheNotFound, match="did you mean 'NUMBERS'"):
        session.start_run(RunRequest("NUMBRES", "pass", 3))
