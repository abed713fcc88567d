"""Ways to hosts from here: to this machine through a pipe, others by SSH."""

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
    """Connected hosts that nobody uses at the moment. Thread-safe."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str | None, ...], Host] = {}
        self._is_over = False

    def take(self, record: HostRecord) -> Host | None:
        """Return a host, for the caller to close, if there is one."""
        return self._hosts.pop(_way_to(record), None)

    def put(self, record: HostRecord, host: Host) -> None:
        """Keep a host, or close it when it is too late for that."""
        before = host if self._is_over else self._hosts.pop(_way_to(record), None)
        if not self._is_over:
            self._hosts[_way_to(record)] = host
        if before is not None:
            before.close()

    def close(self) -> None:
        """Close those that nobody has taken."""
        self._is_over = True
        while self._hosts:
            self._hosts.popitem()[1].close()


def _way_to(record: HostRecord) -> tuple[str | None, ...]:
    return record.name, record.ssh, record.root, record.agent_python


@dataclass(frozen=True, slots=True)
class Reach:
    """What this process needs to reach a run's hosts.

    Attributes:
        root: Directory of this package's state on this machine.
        ssh: How SSH is used.
        timeouts: How long to wait for hosts.
        kept: Hosts that stay connected for whoever opens them next; see `keeping`.
        roots: Directories of this package's state on other hosts, by their ssh names, where they are configured.
    """

    root: Path
    ssh: SshOptions = field(default_factory=SshOptions)
    timeouts: LinkTimeouts = field(default_factory=LinkTimeouts)
    kept: KeptHosts | None = None
    roots: Mapping[str, str] = field(default_factory=dict)

    def seen_from_here(self, record: RunRecord, *, is_verified: bool) -> tuple[HostRecord, ...]:
        """Return a run's hosts as this machine reaches them; the run may have been started on another.

        Args:
            record: The run's.
            is_verified: Whether only this user can have written it. Of one that anybody may have written no more is
                taken than which hosts there are: SSH checks their keys, and what is started there, and where, is said
                by the configuration here.
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
        """Return a host; it is connected to at its first call. Close it."""
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
        """Yield hosts for a moment; afterwards they are closed, or kept for the next visitor."""
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
        """Keep hosts connected from one visit to the next, and to who opens them to stay; then as before.

        Starting a run asks its hosts several things, one after the other; connecting is what takes long.
        """
        kept = KeptHosts()
        try:
            yield replace(self, kept=kept)
        finally:
            kept.close()
