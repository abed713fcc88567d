"""Options: how to reach a cluster, from arguments, a TOML file and the environment.

Values here are frozen and carry no behaviour beyond reading themselves. Secrets never appear in a
`repr`. The environment is read only when one of the functions here is called, never at import.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import ConfigError

DEFAULT_PORT = 10800
CONFIG_FILE = "ignite-tf.toml"


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Host and port of a node's thin client connector."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read "host", "host:port" or "[ipv6]:port".

        Raises:
            ConfigError: The port is not a number from 1 to 65535, or the host is empty.
        """
        host, port_text = _split_host_port(text.strip())
        try:
            port = int(port_text) if port_text else DEFAULT_PORT
        except ValueError:
            port = 0
        if not host or not 1 <= port <= 65535:
            raise ConfigError(f"{text!r} is not an Ignite address; write HOST or HOST:PORT, as in db1:10800")
        return cls(host, port)


def _split_host_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Client side of TLS.

    Attributes:
        certfile: PEM file with the client's certificate; a single file may also hold the key and
            the certificates of the authorities to trust.
        keyfile: PEM file with the private key, when it is not in `certfile`.
        key_password: Password of the private key.
        cafile: PEM file of authorities to trust. Default: those in `certfile`, else the system's.
        check_hostname: Whether the server's certificate must name the host that was dialled.
    """

    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)
    cafile: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to reach a cluster: where, as whom, and under what protection.

    Attributes:
        endpoints: Where to knock first; the other nodes are learnt from the first that answers.
        timeout_s: Limit for opening a connection and for one answer of a control operation.
    """

    endpoints: tuple[Endpoint, ...] = (Endpoint("127.0.0.1"),)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    timeout_s: float = 30.0


def environment(prefix: str, names: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Collect PREFIX + NAME variables that are set and not empty, keyed by lower-case name."""
    source = os.environ if env is None else env
    found = {name.lower(): source.get(prefix + name.upper(), "") for name in names}
    return {name: value for name, value in found.items() if value}


def cache_dir() -> Path:
    """Where downloads that can be fetched again live (jars). Created on first use."""
    import platformdirs

    return _private(Path(platformdirs.user_cache_dir("ignite_tf_magic", appauthor=False)))


def state_dir() -> Path:
    """Where runs and embedded nodes live. Created on first use, readable by its owner only.

    IGNITE_TF_HOME, when set, replaces the user's state directory.
    """
    import platformdirs

    home = os.environ.get("IGNITE_TF_HOME")
    path = Path(home) if home else Path(platformdirs.user_state_dir("ignite_tf_magic", appauthor=False))
    return _private(path)


def _private(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def configured_cluster(env: Mapping[str, str] | None = None) -> ConnectOptions | None:
    """Give the cluster named by IGNITE_TF_CLUSTER ("host:port,host:port") or by `ignite-tf.toml`.

    The file is looked for in the working directory, then in the user's configuration directory:

        [cluster]
        addresses = ["db1:10800", "db2:10800"]
        username = "reader"
        credentials_file = "/home/me/.ignite.json"
        certfile = "client.pem"

    None means that no cluster is configured, and the embedded one is meant.

    Raises:
        ConfigError: An address or the file is malformed.
    """
    source = os.environ if env is None else env
    section = _toml_section("cluster")
    text = source.get("IGNITE_TF_CLUSTER", "")
    addresses = [part for part in text.split(",") if part.strip()] or section.get("addresses", [])
    if not addresses:
        return None
    secrets = read_credentials(Path(section["credentials_file"])) if "credentials_file" in section else {}
    merged = {**section, **secrets}
    return ConnectOptions(
        endpoints=tuple(Endpoint.parse(address) for address in addresses),
        username=merged.get("username"),
        password=merged.get("password"),
        tls=tls_options(merged),
    )


def tls_options(named: Mapping[str, Any]) -> TlsOptions | None:
    """Build TLS options from certfile, keyfile, cert_password, cafile, check_hostname; None without files."""
    if not named.get("certfile") and not named.get("cafile"):
        return None
    return TlsOptions(
        named.get("certfile"),
        named.get("keyfile"),
        named.get("cert_password"),
        named.get("cafile"),
        check_hostname=str(named.get("check_hostname", "true")).lower() != "false",
    )


def _toml_section(name: str) -> dict[str, Any]:
    import platformdirs

    folders = (Path.cwd(), Path(platformdirs.user_config_dir("ignite_tf_magic", appauthor=False)))
    path = next((f / CONFIG_FILE for f in folders if (f / CONFIG_FILE).is_file()), None)
    if path is None:
        return {}
    try:
        section = _toml_loads(path.read_text(encoding="utf-8")).get(name, {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: [{name}] must be a table")
    return section


def _toml_loads(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    return dict(tomllib.loads(text))


def read_credentials(path: Path) -> dict[str, str]:
    """Read a JSON file with username, password, certfile, keyfile, cert_password, cafile, check_hostname.

    Raises:
        ConfigError: Unreadable, not such a file, or readable by others than its owner.
    """
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} holds a password and others may read it; run: chmod 600 {path}")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the credentials file {path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the credentials file {path} must hold a JSON object")
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def embedded_endpoints() -> tuple[Endpoint, ...]:
    """Give the client ports of this user's embedded cluster, from its record; none when it is down.

    Nothing is started or checked here: `ignite_tf_magic.embedded` does that.
    """
    try:
        record = json.loads((state_dir() / "embedded" / "cluster.json").read_text(encoding="utf-8"))
        return tuple(Endpoint(node["host"], node["port"]) for node in record["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def jupyter_proxy_url(env: Mapping[str, str] | None = None) -> str | None:
    """Tell how a browser reaches a port of this machine through Jupyter: a URL with %PORT% in the port's place.

    TENSORBOARD_PROXY_URL says so; else a JupyterHub's proxy serves, or jupyter-server-proxy where the kernel
    finds it installed. None: the browser is taken to run on this machine.
    """
    source = os.environ if env is None else env
    if given := source.get("TENSORBOARD_PROXY_URL"):
        return given
    base = source.get("JUPYTERHUB_SERVICE_PREFIX")
    if not base and importlib.util.find_spec("jupyter_server_proxy") is not None:
        base = _jupyter_base_url(source.get("JPY_PARENT_PID", ""))
    return f"{base.rstrip('/')}/proxy/%PORT%/" if base else None


def _jupyter_base_url(server_pid: str) -> str | None:
    """Read the base URL of the Jupyter server that started this kernel; None when there is none."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        record = Path(jupyter_runtime_dir()) / f"jpserver-{int(server_pid)}.json"
        return str(json.loads(record.read_text(encoding="utf-8"))["base_url"])
    except (ImportError, OSError, ValueError, KeyError, TypeError):
        return None
