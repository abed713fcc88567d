"""Port forwarding for a run with --tunnel: on all hosts of the run, each task's port at 127.0.0.1 leads to the task.

The process that owns the run forwards the data over its own SSH connections, so tunnels end with that process.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import HostError, HostRefused
from ignite_tf_magic.launch.forwards import NO_FORWARDING, End, HostForwards, LocalEnd, end_of
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.runs.orders import NO_ROOM, PORT_TAKEN
from ignite_tf_magic.runs.record import RunRecord

_ANOTHER = "127.0.0.2"  # on Linux, only servers that listen on all interfaces answer at this loopback address
_KNOCK_S = 1.0


@dataclass(frozen=True, slots=True)
class _KnownHost:
    host: Host
    end: End
    forwards: HostForwards


class RunTunnels(Closing):
    """Tunnels from each host of a run to the tasks on its other hosts. Thread-safe, with one thread per host."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownHost] = {}
        self._lock = threading.Lock()
        self._chosen: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._taken: set[int] = set()
        self._checked: set[tuple[str, int]] = set()

    def add(self, host: Host) -> None:
        """Add a host. All hosts of an order must be added before `lead` is called for one of them."""
        end = end_of(host.transport, host.timeouts)
        self._known[host.name] = _KnownHost(host, end, HostForwards(end))

    def reserve(self, record: RunRecord, name: str, count: int) -> tuple[int, ...]:
        """Reserve ports on a host for its tasks. No task on another host has the same ports.

        Raises:
            HostRefused: Not enough ports are free.
        """
        host, seats = self._known[name].host, record.order.seats
        # Reserve more than needed: other hosts may have chosen some of these ports, and some were found taken there.
        wanted = len(seats) + len(self._taken)
        held = host.reserve_ports(wanted, record.spec.port_range)
        with self._lock:
            others = [
                ports
                for other, (generation, ports) in self._chosen.items()
                if other != name and generation == record.generation
            ]
            free = [port for port in held if port not in self._taken.union(*others)]
            self._chosen[name] = record.generation, tuple(free[:count])
        host.unreserve_ports(set(held).difference(free[:count]))
        return tuple(free[:count])

    def lead(self, record: RunRecord, name: str) -> None:
        """Forward the ports of all tasks on other hosts from one host to them; return at once if that is done.

        Raises:
            HostRefused: A port is taken there, or the host's sshd forbids forwarding; see `kind`.
            HostError: The host cannot be reached.
        """
        order, here = record.order, self._known[name]
        ports = {seat.worker: _port(order.addresses[seat.worker]) for seat in order.seats}
        own = [ports[seat.worker] for seat in order.on(name)]
        wanted = {
            ports[seat.worker]: self._known[seat.host].end
            for seat in order.seats
            if own and seat.host != name
        }
        leads = here.forwards.leads
        if leads == wanted:
            return
        here.forwards.lead({port: to for port, to in wanted.items() if leads.get(port) is to})
        if wanted and (name, own[0]) not in self._checked:
            here.forwards.check(own[0])
            # Only once, before the task starts: its server must not receive our test connection.
            self._checked.add((name, own[0]))
        fresh = [port for port in wanted if leads.get(port) is not wanted[port]]
        with self._found_free(here.host, fresh):
            try:
                here.forwards.lead(wanted)
            except HostError:
                raise
            except OSError as error:  # another program has just taken the port
                raise HostRefused(name, PORT_TAKEN, str(error)) from error
        if not isinstance(here.end, LocalEnd):
            _check_kept(here.host, fresh)

    @contextmanager
    def _found_free(self, host: Host, ports: Collection[int]) -> Iterator[None]:
        """Reserve ports of a host, which shows that they are free, while forwarding to them is set up."""
        held: list[int] = []
        try:
            for port in ports:
                try:
                    held += host.reserve_ports(1, (port, port))
                except HostRefused as error:
                    if error.kind not in NO_ROOM:
                        raise
                    self._taken.add(port)
                    raise HostRefused(
                        host.name,
                        PORT_TAKEN,
                        f"another program uses port {port} there; with --tunnel a task has the same port "
                        "on all hosts, so each host must be a machine or network namespace of its own",
                    ) from error
            yield
        finally:
            if held:
                host.unreserve_ports(held)

    def close(self) -> None:
        """End all connections between the hosts."""
        for known in self._known.values():
            known.forwards.close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _check_kept(host: Host, ports: Collection[int]) -> None:
    """Check that the host's sshd listens only for its own host.

    Raises:
        HostRefused: It listens on all interfaces, although asked to listen at 127.0.0.1.
    """
    reasons = host.connect_to([(_ANOTHER, port) for port in ports], _KNOCK_S)
    if None in reasons:
        raise HostRefused(
            host.name,
            NO_FORWARDING,
            "its sshd was asked to listen at 127.0.0.1 for --tunnel, but listens on all interfaces (it "
            f"answers at {_ANOTHER}); its sshd_config needs: GatewayPorts no, or clientspecified",
        )
