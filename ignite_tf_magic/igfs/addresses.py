"""Finds the cluster that an igfs address means.

The address's authority names it, or the environment, or the configuration, or else it is the embedded cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.igfs.paths import endpoint_of
from ignite_tf_magic.igfs.store import DEFAULT_NAME
from ignite_tf_magic.settings.options import (
    DEFAULT_PORT,
    ConnectOptions,
    Endpoint,
    configured_cluster,
    embedded_endpoints,
    environment,
    read_credentials,
    tls_options,
)

# The port of Ignite's own IGFS, which had a protocol of its own and which Ignite 2.9 removed.
_OLD_IGFS_PORT = 10500


def cluster_of(
    authority: str = "", env: Mapping[str, str] | None = None, *, with_credentials: bool = True
) -> ConnectOptions:
    """Return how to reach the cluster of "igfs://AUTHORITY/".

    Addresses never contain user and password. Without an authority, the cluster is the first of these that exists:
    IGFS_HOST and IGFS_PORT, the worker's own node (IGNITE_DATASET_HOST), the configured cluster, the embedded one. With
    an authority it is that node, with the configured user if the node is configured.

    Args:
        authority: HOST or HOST:PORT.
        env: Replaces the process's environment.
        with_credentials: Whether the configured user and password are wanted; if not, a node that is not configured is
            not an error.

    Raises:
        InvalidPath: The authority is not HOST or HOST:PORT.
        ConfigError: No cluster is configured and none runs here; or the authority's node is not configured, and a
            configured password would be sent to it.
    """
    source = os.environ if env is None else env
    if authority:
        return _at(authority, source, with_credentials=with_credentials)
    found = given_cluster(source)
    if found is None and (endpoints := embedded_endpoints()):
        found = ConnectOptions(endpoints=endpoints)
    if found is None:
        raise ConfigError(
            "igfs:/// is the configured or embedded cluster, and there is none: set IGNITE_TF_CLUSTER=HOST:PORT, "
            "write igfs://HOST:PORT/path, or start nodes here with: ignite-tf local up"
        )
    return found


def _at(authority: str, env: Mapping[str, str], *, with_credentials: bool) -> ConnectOptions:
    """Return how to reach one node.

    Only configured nodes get credentials, because anybody can write an address.
    """
    known = _worker(env) or configured_cluster(env) or ConnectOptions()
    endpoint = endpoint_of(authority)
    legacy = _legacy(env)
    configured = {*known.endpoints, *_of_run(env), *(legacy.endpoints if legacy else ())}
    if endpoint in configured or (known.username is None and known.password is None):
        return replace(known, endpoints=(endpoint,))
    if not with_credentials:
        return replace(known, endpoints=(endpoint,), username=None, password=None)
    raise ConfigError(
        f"igfs://{authority}/ is none of the configured nodes ({', '.join(sorted(map(str, configured)))}), which alone "
        "are sent the user and password: add it to [cluster] addresses in ignite-tf.toml, or write igfs:/// for the "
        "configured cluster"
    )


def _of_run(env: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the endpoints that were configured where a worker's run was started."""
    path = environment("IGNITE_DATASET_", ["CREDENTIALS_FILE"], env).get("credentials_file")
    listed = read_credentials(Path(path)).get("endpoints", "") if path else ""
    return tuple(Endpoint.parse(each) for each in listed.split(",") if each)


def given_cluster(env: Mapping[str, str] | None = None) -> ConnectOptions | None:
    """Return the cluster that the environment or a file of options names; None means the embedded one."""
    source = os.environ if env is None else env
    return _legacy(source) or _worker(source) or configured_cluster(source)


def name_of_file_system(env: Mapping[str, str] | None = None) -> str:
    """Return the name of the file system within a cluster: IGFS_FS_NAME, or "igfs"."""
    return environment("IGFS_", ["FS_NAME"], env).get("fs_name", DEFAULT_NAME)


def _legacy(env: Mapping[str, str]) -> ConnectOptions | None:
    """Read the variables of tensorflow-io's igfs; its port, 10500, is not the thin client's."""
    given = environment("IGFS_", ["HOST", "PORT"], env)
    if "host" not in given:
        return None
    port = given.get("port", str(DEFAULT_PORT))
    if not port.isdecimal():
        raise ConfigError(f"IGFS_PORT={port!r} is not a port")
    number = DEFAULT_PORT if int(port) == _OLD_IGFS_PORT else int(port)
    known = _worker(env) or configured_cluster(env) or ConnectOptions()
    return replace(known, endpoints=(Endpoint(given["host"], number),))


def _worker(env: Mapping[str, str]) -> ConnectOptions | None:
    given = environment("IGNITE_DATASET_", ["HOST", "PORT", "CREDENTIALS_FILE", "USERNAME", "PASSWORD"], env)
    if "host" not in given:
        return None
    secrets = read_credentials(Path(given["credentials_file"])) if "credentials_file" in given else {}
    return ConnectOptions(
        endpoints=(Endpoint.parse(f"{given['host']}:{given.get('port', DEFAULT_PORT)}"),),
        username=given.get("username", secrets.get("username")),
        password=given.get("password", secrets.get("password")),
        tls=tls_options(secrets),
    )
