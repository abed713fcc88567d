"""Tests one notebook with a hundred hosts."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack

import pytest

from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.jobs import Job
from ignite_tf_magic.launch.ssh import SshTransport
from ignite_tf_magic.launch.watch import HostWatch
from tests.launch.fake_hosts import FakeHosts

NUM_HOSTS = 100


class FirstOutput:
    def __init__(self, num_hosts: int) -> None:
        self.heard: dict[str, bytes] = {}
        self.all_heard = threading.Event()
        self.num_hosts = num_hosts

    def data(self, host, path, offset, data):
        self.heard[host] = self.heard.get(host, b"") + data
        if len(self.heard) == self.num_hosts:
            self.all_heard.set()

    def gap(self, host, path, start, end):
        raise AssertionError(f"a gap on {host}")


@pytest.mark.nightly
def test_a_hundred_hosts_start_and_stream(tmp_path):
    """Nightly. Shorter: tests/launch/test_hosts_relay.py::test_one_thing_on_many_hosts"""
    sink = FirstOutput(NUM_HOSTS)
    with FakeHosts(tmp_path / "fake", NUM_HOSTS) as fake, ExitStack() as ends:
        transports = {name: SshTransport(name, fake.options) for name in fake.names}
        hosts = [ends.enter_context(Host(n, t, python=sys.executable)) for n, t in transports.items()]
        for host in hosts:
            ends.callback(host.end, "r1", grace_s=0)
        words = ("/bin/sh", "-c", "echo up; exec sleep 100")
        job = Job(run="r1", name="w0", generation=1, argv=words, env={}, log="w0.log", lease_s=30)
        for host in hosts:
            ends.callback(HostWatch(host, "r1", logs={"w0.log": 0}, sink=sink).stop)
        started = call_all(hosts, lambda host: host.start(job))
        assert sink.all_heard.wait(300)
    assert {name: status.name for name, status in started.items()} == dict.fromkeys(fake.names, "w0")
    assert set(sink.heard.values()) == {b"up\n"}
