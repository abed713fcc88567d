"""Reads from Ignite what the doctor needs: nodes, their hosts, and nodes that are missing or isolated."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ignite_tf_magic.client.cache_facts import check_complete, read_facts
from ignite_tf_magic.client.client import Cache, Client, connect
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.row_counts import check_rows
from ignite_tf_magic.doctor.diagnosis import Check, bad, doubtful, good, judge_cluster, judge_data
from ignite_tf_magic.errors import ConfigError, IgniteTfError, LoadIncomplete, RowsLost
from ignite_tf_magic.runs.hosts.run_hosts import NamedHosts, hosts_of_nodes, is_own_address
from ignite_tf_magic.runs.hosts.topology import Answer, ask_all
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.settings.options import Config, ConnectOptions, Endpoint, HostOptions


@dataclass(frozen=True, slots=True)
class ClusterSight:
    """The state of the cluster as Ignite reports it.

    Attributes:
        checks: Checks of the cluster as a whole.
        hosts: All hosts that the doctor visits, by name.
        data: A check of the cache's data for each host with a node in the cluster, by host name.
        missing: The answer of the expected node for each host without a node in the cluster, by host name.
    """

    checks: tuple[Check, ...]
    hosts: Mapping[str, HostRecord]
    data: Mapping[str, Check]
    missing: Mapping[str, Answer]


def look_at_cluster(options: ConnectOptions | None, config: Config, cache: str | None) -> ClusterSight:
    """Ask all configured endpoints for their nodes, and examine the cluster of the longest answer.

    Raises:
        CacheNotFound: The cluster has no such cache.
    """
    if options is None:
        fix = "name it in ignite-tf.toml ([cluster] addresses) or IGNITE_TF_CLUSTER; or: ignite-tf local up"
        checks = (doubtful("", "ignite", "no cluster is configured and no embedded nodes run", fix),)
        return ClusterSight(checks, {each.name: _record(each, config) for each in config.hosts}, {}, {})
    answers = ask_all(options, options.endpoints)
    best = max(answers, key=lambda answer: len(answer.nodes))
    if not best.nodes:
        return _without_cluster(config, answers)
    quick = replace(options, endpoints=(best.endpoint,), timeout_s=min(options.timeout_s, 5.0))
    with connect(quick) as client:
        return _with_cluster(client, options, config, cache, answers)


def _without_cluster(config: Config, answers: Sequence[Answer]) -> ClusterSight:
    tried = "; ".join(answer.error for answer in answers)
    fix = "start the nodes, or correct [cluster] addresses in ignite-tf.toml; meanwhile ps, logs and stop ask the hosts"
    hosts = {each.name: _record(each, config) for each in config.hosts}
    missing: dict[str, Answer] = {}
    for answer in answers:
        host = _host_of(answer, hosts.values(), config)
        hosts.setdefault(host.name, host)
        missing[host.name] = answer
    return ClusterSight((bad("", "ignite", f"no node answers: {tried}", fix),), hosts, {}, missing)


def _with_cluster(
    client: Client, options: ConnectOptions, config: Config, cache: str | None, answers: Sequence[Answer]
) -> ClusterSight:
    checks, data, rows = _look_at_data(client, cache)
    checks += _open_all(client)
    nodes = client.nodes()  # read again: `_open_all` has found which addresses lead to each node
    try:
        found = hosts_of_nodes(config, nodes, options)
    except ConfigError as error:
        checks.append(bad("", "hosts", *_first_line(str(error))))
        found = NamedHosts({})
    named, advice = found.records, "list an address there that is unique to the node, or its node_ids"
    checks += [doubtful("", "hosts", warning, advice) for warning in found.warnings]
    present = {host.name: host for host in named.values()}
    absent: dict[str, HostRecord] = {}
    missing: dict[str, Answer] = {}
    without = _those_without(options, config, answers, named, {node.node_id for node in nodes})
    checks[0] = judge_cluster(checks[0], len(nodes), [str(answer) for answer in without])
    for answer in without:
        host = _host_of(answer, [*present.values(), *absent.values()], config)
        if host.name not in present:
            absent.setdefault(host.name, host)
            missing.setdefault(host.name, answer)
    judged = _judge_data(cache, named, data, rows)
    return ClusterSight(tuple(checks), {**present, **absent}, judged, missing)


def _judge_data(
    cache: str | None, named: Mapping[uuid.UUID, HostRecord], data: Mapping[uuid.UUID, int], rows: int
) -> dict[str, Check]:
    """Judge the share of the cache on each host with a node, with rows estimated from its partitions."""
    counts = dict.fromkeys(sorted({host.name for host in named.values()}), 0)
    for node, count in data.items():
        if node in named:
            counts[named[node].name] += count
    total = sum(data.values())
    return {
        name: judge_data(name, cache, count, f"about {round(rows * count / total):,}" if total else "no")
        for name, count in counts.items()
    }


def _first_line(text: str) -> tuple[str, str]:
    first, _, rest = text.partition("\n")
    return first, rest.strip() or "see docs/cluster.md"


def _look_at_data(client: Client, cache: str | None) -> tuple[list[Check], dict[uuid.UUID, int], int]:
    """Return the checks of the cache, the number of primary partitions by node, and the number of rows."""
    nodes = client.nodes()
    summary = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    if cache is None:
        return [good("", "ignite", summary)], {}, 0
    opened = client.find_cache(cache)
    losses = _look_for_losses(opened)  # waits until all nodes count their rows
    rows, partition_map = opened.size(), opened.partition_map()
    if not partition_map.partitioned:
        whole = good("", "ignite", f"{summary}; {cache}: {rows:,} rows, all of them on every node")
        return [whole, *losses], {}, rows
    backups = opened.config().backups
    data = {node: len(partitions) for node, partitions in partition_map.owners.items()}
    summary += f"; {cache}: {rows:,} rows in {partition_map.num_partitions:,} partitions"
    if backups or len(nodes) == 1:
        return [good("", "ignite", f"{summary}, {backups} backup{'s' * (backups != 1)}"), *losses], data, rows
    fix = "the loss of any node loses rows; load with --backups 1"
    return [doubtful("", "ignite", f"{summary}, no backups", fix), *losses], data, rows


def _look_for_losses(cache: Cache) -> list[Check]:
    """Return a check for each sign that a cache has lost rows or that its load is incomplete."""
    try:
        facts = read_facts(cache.client, cache.name)
        check_complete(cache.client, cache.name, facts)
        reasons = check_rows(cache, cache.baseline(), facts)
    except (RowsLost, LoadIncomplete) as error:
        return [bad("", "rows", *_first_sentence(str(error)))]
    advice = "nothing needs to be done if that is intended; else load again with --replace"
    return [doubtful("", "rows", each, advice) for each in reasons]


def _first_sentence(text: str) -> tuple[str, str]:
    first, _, rest = text.partition(". Load it again")
    return (first, f"load it again{rest}") if rest else _first_line(text)


def _open_all(client: Client) -> list[Check]:
    """Open a connection to each node, and return a check for each failure."""

    def try_one(node: Node) -> Check | None:
        try:
            client.router.give_back(client.router.open_to(node))
        except IgniteTfError as error:
            fix = "open its client port for this machine, or go through one of the hosts: --via HOST"
            return bad("", "ignite", str(error), fix)
        return None

    nodes = client.nodes()
    with ThreadPoolExecutor(len(nodes), "doctor-open") as pool:
        return [check for check in pool.map(try_one, nodes) if check is not None]


def _those_without(
    options: ConnectOptions,
    config: Config,
    answers: Sequence[Answer],
    named: Mapping[uuid.UUID, HostRecord],
    cluster: set[uuid.UUID],
) -> list[Answer]:
    """Return the answers of endpoints and configured hosts that have no node in the cluster."""
    present = {host.name for host in named.values()}
    asked = {answer.endpoint.host for answer in answers}
    more = [
        Endpoint((each.addresses or (each.name,))[0])
        for each in config.hosts
        if each.name not in present and asked.isdisjoint((each.name, *each.addresses))
    ]
    return [
        answer
        for answer in [*answers, *ask_all(options, more)]
        if answer.node is None or answer.node not in cluster
    ]


def _host_of(answer: Answer, hosts: Iterable[HostRecord], config: Config) -> HostRecord:
    """Return the host of an answer's endpoint, as Ignite or the configuration describes it."""
    known = [*hosts, *(_record(each, config) for each in config.hosts)]
    return _host_at(answer.endpoint, known) or _unknown_host(answer.endpoint, config)


def _host_at(endpoint: Endpoint, hosts: Iterable[HostRecord]) -> HostRecord | None:
    """Return the host that has the endpoint's address, literally or resolved, or None."""
    try:
        numbers = {info[4][0] for info in socket.getaddrinfo(endpoint.host, None, type=socket.SOCK_STREAM)}
    except OSError:
        numbers = set()
    names = {endpoint.host, *numbers}
    return next((host for host in hosts if names & {host.name, host.ssh, *host.addresses}), None)


def _record(host: HostOptions, config: Config) -> HostRecord:
    is_here = host.ssh == "local" or (config.ssh.via is None and any(map(is_own_address, host.addresses)))
    return HostRecord(
        name=host.name,
        ssh=None if is_here else host.ssh or host.name,
        root=None if is_here else host.root,
        python=host.python or (sys.executable if is_here else config.launch.python or "python3"),
        addresses=host.addresses,
        tf_address=host.tf_address,
    )


def _unknown_host(endpoint: Endpoint, config: Config) -> HostRecord:
    return _record(HostOptions(endpoint.host, (endpoint.host,)), config)
