"""Opens connections to hosts from this machine: to itself through a pipe, to others by SSH."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.ssh import SshOptions, SshTransport
from ignite_tf_magic.runs.record import HostRecord, RunRecord


class KeptHosts:
    """Connected hosts that are not in use at the moment. Thread-safe."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str | None, ...], Host] = {}
        self._is_over = False

    def take(self, record: HostRecord) -> Host | None:
        """Return a host, which the caller must close, or None."""
        return self._hosts.pop(_way_to(record), None)

    def put(self, record: HostRecord, host: Host) -> None:
        """Keep a host for the next user, or close it if this object has been closed."""
        before = host if self._is_over else self._hosts.pop(_way_to(record), None)
        if not self._is_over:
            self._hosts[_way_to(record)] = host
        if before is not None:
            before.close()

    def close(self) -> None:
        """Close the hosts that are not in use."""
        self._is_over = True
        while self._hosts:
            self._hosts.popitem()[1].close()


def _way_to(record: HostRecord) -> tuple[str | None, ...]:
    return record.name, record.ssh, record.root, record.agent_python


@dataclass(frozen=True, slots=True)
class Reach:
    """The settings that this process needs to reach a run's hosts.

    Attributes:
        root: State directory of this package on this machine.
        ssh: Settings for SSH.
        timeouts: Timeouts of the connections to hosts.
        kept: Hosts that stay connected and are used again by the next `open`; see `keeping`.
        roots: State directories of this package on other hosts, by SSH name, where they are configured.
    """

    root: Path
    ssh: SshOptions = field(default_factory=SshOptions)
    timeouts: LinkTimeouts = field(default_factory=LinkTimeouts)
    kept: KeptHosts | None = None
    roots: Mapping[str, str] = field(default_factory=dict)

    def seen_from_here(self, record: RunRecord, *, is_verified: bool) -> tuple[HostRecord, ...]:
        """Return a run's hosts as this machine reaches them; the run may have been started on another machine.

        Args:
            record: The run's record.
            is_verified: Whether only this user can have written the record. From an unverified record, only the hosts'
                names, SSH names and addresses are used: SSH checks the hosts' keys, and the configuration here decides
                what is started there and where.
        """
        hosts = record.hosts
        if record.owner_host != socket.gethostname():
            hosts = tuple(
                replace(host, ssh=host.addresses[0] if host.addresses else record.owner_host)
                if host.ssh is None
                else host
                for host in hosts
            )
        return hosts if is_verified else tuple(map(self._as_configured, hosts))

    def _as_configured(self, host: HostRecord) -> HostRecord:
        return HostRecord(
            host.name, host.ssh, self.roots.get(host.ssh) if host.ssh else None, addresses=host.addresses
        )

    def open(self, host: HostRecord) -> Host:
        """Return a host, which connects at its first call. The caller must close it."""
        kept = self.kept.take(host) if self.kept is not None else None
        return kept or self._new(host)

    def _new(self, host: HostRecord) -> Host:
        if host.ssh is None:
            root = str(self.root)
            return Host(host.name, PipeTransport(), python=sys.executable, root=root, timeouts=self.timeouts)
        transport = SshTransport(host.ssh, self.ssh)
        return Host(host.name, transport, python=host.agent_python, root=host.root, timeouts=self.timeouts)

    @contextmanager
    def visiting(self, hosts: Iterable[HostRecord]) -> Iterator[list[Host]]:
        """Yield hosts for a short time; afterwards they are closed, or kept for the next caller."""
        with ExitStack() as leaving:
            yield [self._visit(host, leaving) for host in hosts]

    def _visit(self, record: HostRecord, leaving: ExitStack) -> Host:
        host = self.open(record)
        if self.kept is None:
            leaving.callback(host.close)
        else:
            leaving.callback(self.kept.put, record, host)
        return host

    @contextmanager
    def keeping(self) -> Iterator[Reach]:
        """Yield a `Reach` that keeps hosts connected between its calls of `visiting` and `open`.

        Starting a run sends several requests to its hosts, one after another, and connecting is the slow part. The
        hosts that are left are closed at the end.
        """
        kept = KeptHosts()
        try:
            yield replace(self, kept=kept)
        finally:
            kept.close()
