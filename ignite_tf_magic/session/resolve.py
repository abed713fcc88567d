"""Derives from the configuration which cluster and hosts are used, and how they are reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.ssh import SshOptions
from ignite_tf_magic.launch.tunnels import Tunnel
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.session.run_index import RunIndex
from ignite_tf_magic.settings.options import (
    Config,
    ConnectOptions,
    embedded_endpoints,
    load_config_file,
    read_config,
    state_dir,
    timeouts_divisor,
)


def configuration(path: Path | None, via: str | None) -> Config:
    """Read the configuration.

    Args:
        path: A file like ignite-tf.toml, or Ignite's Spring XML; None searches for ignite-tf.toml.
        via: SSH host to connect through, instead of the configured one.

    Raises:
        ConfigError: The file cannot be read, or contains an invalid value.
    """
    found = read_config() if path is None else load_config_file(path)
    return found if via is None else replace(found, ssh=replace(found.ssh, via=via))


def named_cluster(config: Config) -> ConnectOptions | None:
    """Return the configured cluster, else the one with a node on the configured SSH host, else None."""
    options = config.cluster or (ConnectOptions() if config.ssh.via else None)
    return None if options is None else through(config, options)


def through(config: Config, options: ConnectOptions) -> ConnectOptions:
    """Route connections to a cluster through the configured SSH host, if there is one."""
    if config.ssh.via is None:
        return options
    reach = reach_of(config)
    return replace(options, dial=Tunnel(config.ssh.via, reach.ssh, reach.timeouts).connect)


def reach_of(config: Config) -> Reach:
    """Return how hosts are reached, according to the configuration."""
    options = config.ssh
    ssh = SshOptions(
        config_file=None if options.config is None else str(options.config),
        known_hosts=None if options.known_hosts is None else str(options.known_hosts),
        user=options.user,
        via=options.via,
    )
    timeouts = replace(LinkTimeouts(), connect_s=options.connect_timeout_s).divided(timeouts_divisor())
    roots = {each.ssh or each.name: each.root for each in config.hosts if each.root}
    return Reach(state_dir(), ssh, timeouts, roots=roots)


def run_index(config: Config, cluster: ConnectOptions | None = None, reach: Reach | None = None) -> RunIndex:
    """Return the index of runs, with those in the registry of the given cluster, else of the configured one.

    The registry of an embedded cluster is not asked: all of its runs belong to this machine.
    """
    chosen = named_cluster(config) if cluster is None else through(config, cluster)
    is_embedded = chosen is not None and set(chosen.endpoints) <= set(embedded_endpoints())
    if is_embedded and config.ssh.via is None:
        chosen = None
    return RunIndex(state_dir(), reach or reach_of(config), chosen, config.hosts)


def runs_dir() -> Path:
    """Return the directory that contains this user's runs."""
    return state_dir() / "runs"
