"""Determines on which host each Ignite node runs, and the SSH name of that host. Pure: values in, values out.

A node lists every address of its machine: real ones, loopback, and those of container bridges, which every machine
has. An address identifies a host only if no two nodes on different machines list it. Two nodes are on different
machines if each lists an address that the other does not, or if both claim the same port of one address. This
machine counts as one more node.
"""

from __future__ import annotations

import ipaddress
import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.options import CONFIG_FILE, Endpoint, HostOptions


class HostRoute(Enum):
    """How a host is reached if not by SSH."""

    LOCAL = "local"


LOCAL: Final = HostRoute.LOCAL
_LOCAL_NAME = "localhost"
_DOCKER = ipaddress.ip_network("172.17.0.0/16")
_NAMES_OF_NOBODY = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", ""}


@dataclass(frozen=True, slots=True)
class HostOfNode:
    """A machine on which nodes run; equal for all nodes of one machine.

    Attributes:
        name: Name in the configuration, else an address; "localhost" for this machine if it has neither.
        ssh_name: SSH name of the host, or LOCAL for this machine.
        addresses: Addresses that only this host has, best first; they may be unreachable from here.
        python: Interpreter of the workers there, if configured.
        root: State directory of this package there, if configured.
        tf_address: Address at which workers of other hosts reach its workers, if configured.
    """

    name: str
    ssh_name: str | HostRoute
    addresses: tuple[str, ...] = ()
    python: str | None = None
    root: str | None = None
    tf_address: str | None = None


@dataclass(frozen=True, slots=True)
class HostNames:
    """The host of every node, and warnings for the user about how it was found."""

    hosts: Mapping[uuid.UUID, HostOfNode]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """The cluster as seen from this machine.

    Attributes:
        addresses: Addresses of this machine.
        reached: The address at which a node has answered, for the nodes that were contacted. Leave out addresses
            reached through a tunnel: they would make nodes on another machine look like nodes on this one.
    """

    addresses: Collection[str] = ()
    reached: Mapping[uuid.UUID, str] = field(default_factory=dict)


def name_hosts(
    nodes: Mapping[uuid.UUID, Sequence[Endpoint]],
    configured: Sequence[HostOptions] = (),
    here: ThisMachine = ThisMachine(),
    consistent_ids: Mapping[uuid.UUID, str] | None = None,
) -> HostNames:
    """Return the host of each node.

    Args:
        nodes: The endpoints that each node lists.
        configured: The [hosts.NAME] tables of the configuration. A table refers to a node by its id or consistent id
            (in `node_ids`, or as NAME), or by an address that identifies a host.
        here: This machine.
        consistent_ids: Consistent ids of the nodes, as far as they are known.

    Raises:
        ConfigError: A node's host cannot be determined, or two tables refer to the same node. The message shows what
            to write.
    """
    seen = _SeenAddresses(nodes, here, consistent_ids or {})
    entries = {node: _entry(seen, node, configured) for node in nodes}
    hosts: dict[uuid.UUID, HostOfNode] = {}
    for group in _groups(seen, entries):
        entry = next((found for node in group if (found := entries[node])), None)
        if host := _host(seen, group, entry):
            hosts |= dict.fromkeys(group, host)
    unnamed = [node for node in nodes if node not in hosts]
    if unnamed:
        raise ConfigError(_unnamed(seen, unnamed))
    return HostNames(hosts, tuple(_warnings(seen, configured)))


class _SeenAddresses:
    """The addresses of the nodes.

    Attributes:
        listed: Addresses of each node, in normal form.
        own: Addresses of this machine.
        ambiguous: Addresses that do not identify a host.
        tells: The addresses of each node that identify its host to any machine, best first.
    """

    def __init__(
        self,
        nodes: Mapping[uuid.UUID, Sequence[Endpoint]],
        here: ThisMachine,
        consistent_ids: Mapping[uuid.UUID, str],
    ) -> None:
        self.consistent_ids = consistent_ids
        self.own = frozenset(map(plain_address, here.addresses))
        self._reached = {
            node: plain_address(address) for node, address in here.reached.items() if node in nodes
        }
        self._ports = {node: self._ports_of(node, endpoints) for node, endpoints in nodes.items()}
        self.listed = {node: tuple(ports) for node, ports in self._ports.items()}
        self.ambiguous = self._ambiguous()
        self.tells = {node: self._telling(node) for node in nodes}

    def _ports_of(self, node: uuid.UUID, endpoints: Sequence[Endpoint]) -> dict[str, int]:
        ports = {plain_address(each.host): each.port for each in endpoints}
        if (reached := self._reached.get(node)) is not None:
            ports.setdefault(reached, 0)
        return ports

    def _ambiguous(self) -> set[str]:
        listers: dict[str, list[uuid.UUID]] = {}
        for node, addresses in self.listed.items():
            for address in addresses:
                listers.setdefault(address, []).append(node)
        return {address for address, nodes in listers.items() if self._is_ambiguous(address, nodes)}

    def _is_ambiguous(self, address: str, nodes: Sequence[uuid.UUID]) -> bool:
        others = [node for node in nodes if self._reached.get(node) != address]
        if address in self.own and any(_each_has_own(self.listed[node], self.own) for node in others):
            return True
        return any(self._differ(a, b, address) for a, b in itertools.combinations(nodes, 2))

    def _differ(self, a: uuid.UUID, b: uuid.UUID, address: str) -> bool:
        same_port = self._ports[a][address] == self._ports[b][address]
        return same_port or _each_has_own(self.listed[a], self.listed[b])

    def _telling(self, node: uuid.UUID) -> tuple[str, ...]:
        reached = self._reached.get(node)
        found = (a for a in self.listed[node] if a not in self.ambiguous and not is_non_identifying(a))
        return tuple(sorted(found, key=lambda address: (address != reached, *rank(address))))

    def is_here(self, node: uuid.UUID) -> bool:
        """Return whether the node runs on this machine, as far as its addresses show."""
        tells = self.tells[node]
        if tells:
            return any(address in self.own for address in tells)
        return self._only_loopback(node) and self._is_over_loopback()

    def _only_loopback(self, node: uuid.UUID) -> bool:
        return all(is_non_identifying(address) for address in self.listed[node])

    def _is_over_loopback(self) -> bool:
        """Return whether a node answered on loopback and lists no address of another machine."""
        return any(
            _is_loopback(address) and not set(self.tells[node]) - self.own
            for node, address in self._reached.items()
        )


def _entry(seen: _SeenAddresses, node: uuid.UUID, configured: Sequence[HostOptions]) -> HostOptions | None:
    ids = {str(node), seen.consistent_ids.get(node, str(node))}
    addresses = set(seen.listed[node]) - seen.ambiguous
    by_id = [each for each in configured if ids & {each.name, *each.node_ids}]
    named = by_id or [each for each in configured if addresses & _plain_addresses(each)]
    if len(named) > 1:
        tables = " and ".join(f"[hosts.{each.name}]" for each in named)
        raise ConfigError(
            f"{tables} of {CONFIG_FILE} both match Ignite node {node}, which lists "
            f"{', '.join(seen.listed[node])}; remove what matches it from one of them"
        )
    return named[0] if named else None


def _plain_addresses(entry: HostOptions) -> set[str]:
    return {plain_address(address) for address in (*entry.addresses, entry.name)}


def _groups(seen: _SeenAddresses, entries: Mapping[uuid.UUID, HostOptions | None]) -> list[list[uuid.UUID]]:
    """Group nodes that are on the same host: by the configuration, else by a common address."""
    keys = {node: {*seen.tells[node], *([_LOCAL_NAME] if seen.is_here(node) else [])} for node in entries}
    by_name: dict[str, list[uuid.UUID]] = {}
    free: list[list[uuid.UUID]] = []
    for node, entry in entries.items():
        if entry is not None:
            by_name.setdefault(entry.name, []).append(node)
            continue
        touching = [group for group in free if any(keys[node] & keys[other] for other in group)]
        free = [group for group in free if group not in touching]
        free.append([*itertools.chain.from_iterable(touching), node])
    named = list(by_name.values())
    for group in free:
        common = set().union(*(keys[node] for node in group))
        home = next((each for each in named if any(keys[node] & common for node in each)), None)
        if home is None:
            by_name[str(group[0])] = group
        else:
            home += group
    return list(by_name.values())


def _host(seen: _SeenAddresses, group: Sequence[uuid.UUID], entry: HostOptions | None) -> HostOfNode | None:
    addresses = tuple(dict.fromkeys(itertools.chain.from_iterable(seen.tells[node] for node in group)))
    is_here = any(seen.is_here(node) for node in group)
    if not (addresses or is_here or entry):
        return None
    # The name must not depend on which address was reached, so that it is the same on every machine.
    options = entry or HostOptions(min(addresses, key=rank, default=_LOCAL_NAME))
    # If a node lists only loopback, a configured SSH name says that it is on another machine.
    ssh_name = options.ssh or (entry.name if entry else addresses[0] if addresses else LOCAL)
    is_local = is_here and (bool(addresses) or options.ssh is None)
    return HostOfNode(
        name=options.name,
        ssh_name=LOCAL if is_local or options.ssh == LOCAL.value else ssh_name,
        addresses=addresses or tuple(a for a in options.addresses if plain_address(a) not in seen.ambiguous),
        python=options.python,
        root=options.root,
        tf_address=options.tf_address,
    )


def _warnings(seen: _SeenAddresses, configured: Sequence[HostOptions]) -> Iterator[str]:
    for entry in configured:
        for address in sorted(set(map(plain_address, entry.addresses)) & seen.ambiguous):
            yield (
                f"[hosts.{entry.name}] of {CONFIG_FILE} lists {address}, which several machines have: it "
                "does not identify a host and is ignored"
            )


def _unnamed(seen: _SeenAddresses, nodes: Sequence[uuid.UUID]) -> str:
    lines = [f"cannot tell on which hosts {len(nodes)} Ignite node(s) run; write in {CONFIG_FILE}:"]
    for number, node in enumerate(nodes, 1):
        listed = ", ".join(seen.listed[node]) or "nothing"
        lines += [
            "",
            f"# lists {listed}: loopback, or addresses that other machines have too",
            f"[hosts.host{number}]",
            f'node_ids = ["{seen.consistent_ids.get(node, node)}"]',
            f'ssh = "HOST{number}"    # what SSH calls it; "local" for this machine',
        ]
    if any(node not in seen.consistent_ids for node in nodes):
        lines += ["", "A node has another id after its restart; its consistent id stays."]
    return "\n".join(lines)


def _each_has_own(a: Collection[str], b: Collection[str]) -> bool:
    """Return whether each side has an IP that the other lacks.

    Only IPs of the same kind are compared, because IPv6 addresses come and go.
    """
    first, second = ({v for each in side if (v := _ip(each))} for side in (a, b))
    for kind in (_is_real_v4, _is_real_v6, _is_loopback_ip):
        ours, theirs = set(filter(kind, first)), set(filter(kind, second))
        if ours and theirs:
            return bool(ours - theirs and theirs - ours)
    return False


_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def _is_real_v4(ip: _Ip) -> bool:
    return ip.version == 4 and not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def _is_real_v6(ip: _Ip) -> bool:
    return ip.version == 6 and not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def _is_loopback_ip(ip: _Ip) -> bool:
    return ip.is_loopback


def _ip(address: str) -> _Ip | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def plain_address(address: str) -> str:
    """Return an address in normal form: no brackets or zone, lower case, mapped IPv4 as plain IPv4."""
    text = address.strip().strip("[]").lower()
    ip = _ip(text.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return str(ip) if ip else text


def _is_loopback(address: str) -> bool:
    ip = _ip(address)
    return address in _NAMES_OF_NOBODY if ip is None else ip.is_loopback


def is_non_identifying(address: str) -> bool:
    """Return whether an address means a different machine on every machine that uses it."""
    ip = _ip(address)
    return _is_loopback(address) or bool(ip and (ip.is_link_local or ip.is_unspecified or ip.is_multicast))


def rank(address: str) -> tuple[int, str]:
    """Return the sort key of an address: IPv4, IPv6, Docker's default bridge, then names, which may be local only."""
    ip = _ip(address)
    if ip is None:
        return 9, address
    return (8 if ip in _DOCKER else ip.version), address
