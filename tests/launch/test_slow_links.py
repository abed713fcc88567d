"""Tests of links of 150 ms with 3 % packet loss: no line is lost or doubled, and no worker ends early.

Tests of whole runs over such links: `tests/ssh/test_ssh_slow_links.py`, and `python -m benchmarks.slow_links`.
"""

from __future__ import annotations

import sys

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import LinkTimeouts, Renewal
from ignite_tf_magic.launch.ssh import SshTransport
from ignite_tf_magic.launch.watch import Contact, HostWatch
from tests.launch.relay_jobs import Kept, end_all, shell_job
from tests.launch.slow_link import SlowLink
from tests.waiting import until

NUM_LINES = 20_000
COUNTING = f"i=0; while [ $i -lt {NUM_LINES} ]; do seq $i $((i + 99)); i=$((i + 100)); sleep 0.02; done"
LEASE_S = 6.0  # renewals must arrive within this time


def test_a_slow_link_that_loses_packets_loses_no_line_and_ends_no_worker(box):
    link = SlowLink((box.address, box.port), round_trip_s=0.15, loss=0.03, seed=0)
    with link:
        behind_the_link(box, link.port)
        seen: list[Contact] = []
        sink, whole = Kept(), "".join(f"{i}\n" for i in range(NUM_LINES)).encode()
        with Host(
            "h1", SshTransport("box", box.options), python=sys.executable, timeouts=LinkTimeouts()
        ) as host:
            watch = HostWatch(
                host, "r1", logs={"w0.log": 0}, sink=sink, on_change=lambda: seen.append(watch.view.contact)
            )
            try:
                watch.set_renewal(Renewal(1, LEASE_S))
                host.start(shell_job("w0", COUNTING, lease_s=LEASE_S))
                assert sink.wait_for("w0.log", len(whole)) == whole
                until(lambda: watch.view.jobs["w0"].has_ended)
                ended = watch.view.jobs["w0"]
                assert (ended.code, ended.reason) == (0, "exited")
            finally:
                watch.stop()
                end_all(host)
        assert link.counts.lost > 0
        assert Contact.UNREACHABLE not in seen
        assert box.log.count("Accepted publickey") == 1


def behind_the_link(box, port: int) -> None:
    """Route the name "box" through the link, and accept the server's key at the link's port."""
    config = box.ssh_config.read_text()
    box.ssh_config.write_text(
        config.replace(f"HostName {box.address}", "HostName 127.0.0.1").replace(
            f"Port {box.port}", f"Port {port}"
        )
    )
    (_, key) = box.known_hosts.read_text().splitlines()
    box.known_hosts.write_text(f"{key}\n[127.0.0.1]:{port} {key.split(' ', 1)[1]}\n")
