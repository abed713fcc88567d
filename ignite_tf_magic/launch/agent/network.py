"""Ports, reachability and addresses of this host. Imports `socket` only when a function needs it."""

from __future__ import annotations

import errno
import os
import select
import time

from ignite_tf_magic.launch.agent.devices import held_devices, list_leases
from ignite_tf_magic.launch.agent.disk import FileLock, Refused
from ignite_tf_magic.launch.agent.runs import Runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_PORTS = 4096
_LISTEN = "0A"  # the kernel's TCP_LISTEN, as its tables show it
_KNOCK_S = 1.0


class Ports:
    """Ports held by this relay: reserved ones without a listener, and listeners that close connections at once."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._reserved: dict[int, Any] = {}
        self._listening: dict[int, Any] = {}

    def reserve(self, count: int, within: list[int] | None) -> list[int]:
        """Reserve ports that are free on all interfaces, until `unreserve` or the end of the relay."""
        if not 0 <= count <= _MAX_PORTS:
            raise Refused("bad_request", f"{count} is no number of ports")
        with FileLock(f"{self._runs.root}/devices.lock"):
            _, held = held_devices(list_leases(self._runs))
            found: dict[int, Any] = {}
            candidates = iter([0] * (count + 100) if within is None else range(within[0], within[1] + 1))
            try:
                while len(found) < count:
                    self._try_next(candidates, held, found, within)
            except BaseException:
                _close_all(found.values())
                raise
        self._reserved.update(found)
        return list(found)

    def _try_next(
        self, candidates: Any, held: set[int], found: dict[int, Any], within: list[int] | None
    ) -> None:
        port = next(candidates, None)
        if port is None:
            where = f"from {within[0]} to {within[1]}" if within else "that the system chooses"
            raise Refused("no_ports", f"too few of the ports {where} are free: {len(found)}", free=len(found))
        bound = None if port in held else _bound(port)
        if bound is None:
            return
        number = bound.getsockname()[1]
        if number in held:
            bound.close()
        else:
            found[number] = bound

    def count_free(self, within: list[int], wanted: int) -> int:
        """Return the number of ports that are free on all interfaces, counted up to `wanted`."""
        num_free = 0
        # The lock keeps `reserve` from finding ports taken that are only tried here.
        with FileLock(f"{self._runs.root}/devices.lock"):
            _, held = held_devices(list_leases(self._runs))
            for port in range(within[0], within[1] + 1):
                bound = _bound(port) if num_free < wanted and port not in held else None
                if bound is not None:
                    num_free += 1
                    bound.close()
        return num_free

    def unreserve(self, ports: list[int]) -> None:
        """Release reserved ports."""
        _close_all([self._reserved.pop(port) for port in ports if port in self._reserved])

    def listen(self, port: int) -> int:
        """Accept connections on a port and close them, so that other hosts can test whether they reach this one.

        Returns:
            The port. If `port` is 0, the system chooses it.
        """
        import socket

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise Refused(
                "port_taken", f"cannot listen at port {port}: {error.strerror}", port=port
            ) from error
        listener.setblocking(False)
        self._listening[listener.fileno()] = listener
        return int(listener.getsockname()[1])

    def unlisten(self, port: int) -> None:
        """Close the listener on a port."""
        for descriptor, listener in list(self._listening.items()):
            if listener.getsockname()[1] == port:
                del self._listening[descriptor]
                listener.close()

    @property
    def listening(self) -> list[int]:
        """Descriptors of the listeners."""
        return list(self._listening)

    def accept(self, descriptor: int) -> None:
        """Accept and close the connections that wait at a listener."""
        try:
            while descriptor in self._listening:
                self._listening[descriptor].accept()[0].close()
        except OSError:
            pass


def _bound(port: int) -> Any:
    """Bind a free port, then allow sharing, so that only a program that also allows it can use the port."""
    import socket

    bound = socket.socket()
    try:
        bound.bind(("", port))
    except OSError:
        bound.close()
        return None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return bound


def _close_all(sockets: Any) -> None:
    for each in sockets:
        each.close()


def connect_to(targets: list[list[Any]], timeout_s: float) -> list[str | None]:
    """Try to connect to all (host, port) pairs at once; return for each the error, or None if reached."""
    results: list[str | None] = ["no answer"] * len(targets)
    waiting: dict[int, tuple[int, Any]] = {}
    poller = select.poll()
    for number, (host, port) in enumerate(targets):
        results[number], attempt = _begin_to_connect(host, port)
        if attempt is not None:
            waiting[attempt.fileno()] = (number, attempt)
            poller.register(attempt, select.POLLOUT)
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        for descriptor, _ in poller.poll(max(deadline - time.monotonic(), 0) * 1000):
            number, attempt = waiting.pop(descriptor)
            poller.unregister(descriptor)
            results[number] = _outcome(attempt)
    _close_all([attempt for _, attempt in waiting.values()])
    return results


def _begin_to_connect(host: str, port: int) -> tuple[str | None, Any]:
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        attempt = socket.socket(family, kind, protocol)
    except OSError as error:
        return error.strerror or str(error), None
    attempt.setblocking(False)
    code = attempt.connect_ex(address)
    if code in (0, errno.EINPROGRESS):
        return "no answer", attempt
    attempt.close()
    return os.strerror(code), None


def _outcome(attempt: Any) -> str | None:
    import socket

    code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    attempt.close()
    return os.strerror(code) if code else None


def listens(host: str, port: int) -> bool:
    """Return whether any program on this host listens on a port.

    Reads the system's socket tables, because a connection could disturb a program that accepts only one or counts them.
    Connects only if the system has no such tables.
    """
    tables = [path for path in ("/proc/net/tcp", "/proc/net/tcp6") if os.path.exists(path)]
    if not tables:
        return connect_to([[host, port]], _KNOCK_S)[0] is None
    end = f":{port:04X}"
    return any(
        fields[1].endswith(end) and fields[3] == _LISTEN for path in tables for fields in _sockets(path)
    )


def _sockets(path: str) -> Any:
    with open(path, encoding="ascii") as table:
        next(table, None)
        for line in table:
            yield line.split(None, 4)


def route(addresses: list[str]) -> list[str | None]:
    """Return, for each target address, this host's address that it would send from, or None. Sends nothing."""
    return [_source(address) for address in addresses]


def _source(address: str) -> str | None:
    import socket

    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None
