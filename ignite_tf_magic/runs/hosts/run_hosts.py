"""The hosts that a run may use, before it starts: which they are, whether they can be reached, what room they have."""

from __future__ import annotations

import socket
import sys
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ignite_tf_magic.client.router import Node
from ignite_tf_magic.config.options import Config
from ignite_tf_magic.errors import HostError, IgniteTfError
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.runs.hosts.capacity import look
from ignite_tf_magic.runs.hosts.host_names import LOCAL, HostOfNode, ThisMachine, name_hosts, plain_address
from ignite_tf_magic.runs.orders import Capacity
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunSpec


@dataclass(frozen=True, slots=True)
class NamedHosts:
    """The host of every node, and what of the configuration was passed over, in words."""

    records: Mapping[uuid.UUID, HostRecord]
    warnings: tuple[str, ...] = ()


def hosts_of_nodes(config: Config, nodes: Collection[Node]) -> NamedHosts:
    """Say on which host each node runs, and how that host is reached.

    Raises:
        ConfigError: A node's host cannot be told.
    """
    listed = {node.node_id: node.endpoints for node in nodes}
    addresses = {endpoint.host for endpoints in listed.values() for endpoint in endpoints}
    here = ThisMachine()
    if config.ssh.via is None:
        own = [address for address in addresses if is_own_address(address)]
        here = ThisMachine(own, {node.node_id: node.endpoints[0].host for node in nodes})
    names = name_hosts(listed, config.hosts, here)
    untold = _untold(names.hosts, nodes)
    records = {
        node: _record(host, config, sorted(untold.get(host.name, ()))) for node, host in names.hosts.items()
    }
    return NamedHosts(records, names.warnings)


def _untold(hosts: Mapping[uuid.UUID, HostOfNode], nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Give, by host, the ids of nodes that list no address of which only their host is known."""
    by_name = {host.name: host for host in hosts.values()}
    hosts_with = Counter(address for host in by_name.values() for address in host.addresses)
    found: dict[str, list[str]] = {}
    for node in nodes:
        host, listed = hosts[node.node_id], {plain_address(endpoint.host) for endpoint in node.listed}
        if not any(address in listed and hosts_with[address] == 1 for address in host.addresses):
            found.setdefault(host.name, []).append(str(node.node_id))
    return found


def _record(host: HostOfNode, config: Config, nodes: Iterable[str]) -> HostRecord:
    is_here = host.ssh_name is LOCAL
    default = sys.executable if is_here else config.launch.python or "python3"
    return HostRecord(
        name=host.name,
        ssh=None if is_here else str(host.ssh_name),
        root=None if is_here else host.root,
        python=host.python or default,
        addresses=host.addresses,
        tf_address=host.tf_address,
        nodes=tuple(nodes),
    )


def is_own_address(address: str) -> bool:
    """Tell whether an address is one of this machine's: packets to it would leave from it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False


def rooms_of(reach: Reach, hosts: Iterable[HostRecord], spec: RunSpec) -> dict[str, Capacity]:
    """Ask hosts, all at once, what they have for the workers of a run."""
    with reach.visiting(hosts) as opened:
        answers = call_all(opened, partial(look, spec=spec))
    return {
        name: Capacity(error=str(answer)) if isinstance(answer, IgniteTfError) else answer
        for name, answer in answers.items()
    }


def unusable_hosts(hosts: Iterable[HostRecord], reach: Reach) -> dict[str, str]:
    """Try to reach hosts, all at once; gives the reason of those that cannot be used."""
    with reach.visiting(host for host in hosts if host.ssh is not None) as remote:
        answers = call_all(remote, Host.hello)
    return {
        name: answer.reason if isinstance(answer, HostError) else str(answer)
        for name, answer in answers.items()
        if isinstance(answer, IgniteTfError)
    }
