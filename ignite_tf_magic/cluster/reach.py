"""How hosts are reached from here: this machine through a pipe, others by SSH."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from ignite_tf_magic.cluster.record import HostRecord, RunRecord
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import LinkTimings
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.ssh import SshOptions, SshTransport


@dataclass(frozen=True, slots=True)
class Reach:
    """What this process needs to reach a run's hosts.

    Attributes:
        root: Directory of this package's state on this machine.
        ssh: How SSH is used.
        timings: How long to wait for hosts.
    """

    root: Path
    ssh: SshOptions = field(default_factory=SshOptions)
    timings: LinkTimings = field(default_factory=LinkTimings)

    def seen_from_here(self, record: RunRecord) -> tuple[HostRecord, ...]:
        """Give a run's hosts as this machine reaches them; the run may have been started on another."""
        if record.owner_host == socket.gethostname():
            return record.hosts
        return tuple(
            replace(host, ssh=host.addresses[0] if host.addresses else record.owner_host)
            if host.ssh is None
            else host
            for host in record.hosts
        )

    def open(self, host: HostRecord) -> Host:
        """Give a host; it is connected to at its first call. Close it."""
        if host.ssh is None:
            root = str(self.root)
            return Host(host.name, PipeTransport(), python=sys.executable, root=root, timings=self.timings)
        transport = SshTransport(host.ssh, self.ssh)
        return Host(host.name, transport, python=host.agent_python, root=host.root, timings=self.timings)
