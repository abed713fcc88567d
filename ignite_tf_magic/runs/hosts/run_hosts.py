"""Finds the hosts that a run may use before it starts, and checks whether they are reachable and have room."""

from __future__ import annotations

import itertools
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.errors import ConfigError, HostError, IgniteTfError, PlacementError
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.jobs import ProbeFacts
from ignite_tf_magic.runs.hosts.capacity import look
from ignite_tf_magic.runs.hosts.host_names import (
    LOCAL,
    HostNames,
    HostOfNode,
    ThisMachine,
    is_non_identifying,
    name_hosts,
    plain_address,
    rank,
)
from ignite_tf_magic.runs.orders import Capacity
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunSpec
from ignite_tf_magic.runs.roles import Strategy
from ignite_tf_magic.settings.options import Config, ConnectOptions, Endpoint


@dataclass(frozen=True, slots=True)
class NamedHosts:
    """The host of every node, and warnings about ignored parts of the configuration."""

    records: Mapping[uuid.UUID, HostRecord]
    warnings: tuple[str, ...] = ()


def hosts_of_nodes(
    config: Config, nodes: Collection[Node], options: ConnectOptions | None = None
) -> NamedHosts:
    """Find the host of each node, and how to reach that host.

    Args:
        config: The configuration, which may name hosts by address or node id.
        nodes: Nodes of the cluster.
        options: Connection options for requesting consistent ids, if the configuration has such ids or if hosts cannot
            be determined without them; None never requests them.

    Raises:
        ConfigError: The host of a node cannot be determined.
    """
    listed = {node.node_id: node.endpoints for node in nodes}
    addresses = {endpoint.host for endpoints in listed.values() for endpoint in endpoints}
    here = ThisMachine()
    if config.ssh.via is None:
        own = [address for address in addresses if is_own_address(address)]
        here = ThisMachine(own, {node.node_id: node.endpoints[0].host for node in nodes})
    asks = options is not None and any(
        _is_consistent_id(each) for host in config.hosts for each in host.node_ids
    )
    names = _named(listed, config, here, options, asks=asks)
    untold = _untold(names.hosts, nodes)
    records = {
        node: _record(host, config, sorted(untold.get(host.name, ()))) for node, host in names.hosts.items()
    }
    return NamedHosts(records, names.warnings)


def _named(
    listed: Mapping[uuid.UUID, Sequence[Endpoint]],
    config: Config,
    here: ThisMachine,
    options: ConnectOptions | None,
    *,
    asks: bool,
) -> HostNames:
    ids = _consistent_ids(options) if asks and options is not None else {}
    try:
        return name_hosts(listed, config.hosts, here, ids)
    except ConfigError:
        if asks or options is None:
            raise
    return _named(listed, config, here, options, asks=True)


def _is_consistent_id(text: str) -> bool:
    """Return whether this is not a node id, which a node only has until it restarts."""
    try:
        uuid.UUID(text)
    except ValueError:
        return True
    return False


def _consistent_ids(options: ConnectOptions) -> dict[uuid.UUID, str]:
    """Return the ids that nodes keep over a restart; empty if the cluster has no SQL."""
    try:
        rows = SqlClient(options).query("SELECT NODE_ID, CONSISTENT_ID FROM SYS.NODES").rows
    except IgniteTfError:
        return {}
    return {uuid.UUID(str(node)): str(consistent) for node, consistent in rows}


def hosts_by_record(hosts: Collection[HostRecord], nodes: Collection[Node]) -> dict[uuid.UUID, HostRecord]:
    """Assign nodes to the hosts of a record. A node on an unknown host gets a new host record without an SSH name."""
    by_id = {node: host for host in hosts for node in host.nodes}
    hosts_with = Counter(address for host in hosts for address in host.addresses)
    by_address = {
        plain_address(address): host
        for host in hosts
        for address in host.addresses
        if hosts_with[address] == 1
    }
    untold = [host for host in hosts if not host.addresses]
    told = {node.node_id: _telling(node) for node in nodes}
    listers = Counter(itertools.chain.from_iterable(told.values()))
    found = {}
    for node in nodes:
        # Prefer addresses listed by one node only: other nodes may have begun to list the others since the run started.
        telling = sorted(told[node.node_id], key=lambda each: (listers[each], *rank(each)))
        host = by_id.get(str(node.node_id)) or next((by_address[a] for a in telling if a in by_address), None)
        if host is None and len(untold) == 1 and _is_on_loopback(node):
            host = untold[0]  # nodes that list only loopback addresses are all on one machine
        found[node.node_id] = host or HostRecord(telling[0], ssh=telling[0])
    return found


def _telling(node: Node) -> list[str]:
    """Return a node's addresses; loopback addresses only if it lists no others."""
    addresses = list(dict.fromkeys(plain_address(each.host) for each in node.endpoints))
    return (
        addresses if _is_on_loopback(node) else [each for each in addresses if not is_non_identifying(each)]
    )


def _is_on_loopback(node: Node) -> bool:
    return all(is_non_identifying(plain_address(each.host)) for each in node.listed)


def _untold(hosts: Mapping[uuid.UUID, HostOfNode], nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return, by host, the ids of nodes that list no address that identifies their host."""
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
    """Return whether an address belongs to this machine: packets to it would have it as their source."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False


def capacities_of(reach: Reach, hosts: Iterable[HostRecord], spec: RunSpec) -> dict[str, Capacity]:
    """Ask all hosts at once for their resources for the workers of a run."""
    with reach.visiting(hosts) as opened:
        answers = call_all(opened, partial(look, spec=spec))
    return {
        name: Capacity(error=str(answer)) if isinstance(answer, IgniteTfError) else answer
        for name, answer in answers.items()
    }


def unusable_hosts(hosts: Iterable[HostRecord], reach: Reach) -> dict[str, str]:
    """Try to reach all hosts at once; return why some cannot be used, by host name."""
    with reach.visiting(host for host in hosts if host.ssh is not None) as remote:
        answers = call_all(remote, Host.hello)
    return {
        name: answer.reason if isinstance(answer, HostError) else str(answer)
        for name, answer in answers.items()
        if isinstance(answer, IgniteTfError)
    }


def check_same_tensorflow(hosts: Sequence[HostRecord], spec: RunSpec, reach: Reach) -> None:
    """Check that tasks that compute for each other have the same TensorFlow on all hosts of a run.

    Workers that take each step together compare their versions of TensorFlow and Keras themselves.

    Raises:
        PlacementError: The versions differ; the message names each host's version.
    """
    by_name = {host.name: host for host in hosts}
    if spec.strategy is Strategy.SYNC or len(by_name) < 2:
        return

    def probe(host: Host) -> ProbeFacts:
        return host.probe(spec.python or by_name[host.name].python, ["tensorflow"])

    with reach.visiting(by_name.values()) as opened:
        answers = call_all(opened, probe)
    found = {
        name: answer.modules["tensorflow"]
        for name, answer in sorted(answers.items())
        if isinstance(answer, ProbeFacts) and answer.modules.get("tensorflow")
    }
    if len(set(found.values())) > 1:
        told = ", ".join(f"{version} on {name}" for name, version in found.items())
        raise PlacementError(
            f"tasks that compute for each other have different versions of TensorFlow: {told}. --requirements FILE "
            "builds one environment on every host, --python names another interpreter, and --hosts leaves hosts out"
        )
