"""Options for reaching a cluster and its hosts, from arguments, files and the environment.

The option classes are frozen and have no behaviour beyond parsing. Secrets never appear in a `repr`. The environment is
read only when one of the functions here is called, never at import.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.own_files import check_own, check_private
from ignite_tf_magic.settings.spring_xml import looks_like_xml, read_spring_xml
from ignite_tf_magic.settings.toml_tables import TomlTable, is_word, parse_toml

if TYPE_CHECKING:
    import socket

DEFAULT_PORT = 10800
CONFIG_FILE = "ignite-tf.toml"
_MAX_FILE_BYTES = 1 << 20
_FILES = ("certfile", "keyfile", "cafile")
_TLS = ("cert_password", "check_hostname")


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
    """TLS options of the client.

    Attributes:
        certfile: PEM file with the client's certificate. The same file may also hold the key and the certificates of
            the authorities to trust.
        keyfile: PEM file with the private key, if it is not in `certfile`.
        key_password: Password of the private key.
        cafile: PEM file with the only authorities to trust. Default: those in `certfile`, else the system's.
        check_hostname: Whether the server's certificate must name the host that the client connects to. In any case, a
            trusted authority must have issued it.
    """

    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)
    cafile: str | None = None
    check_hostname: bool = True


Dial = Callable[[str, int, float], "socket.socket"]


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Options for connecting to a cluster: its endpoints, the login, and TLS.

    Attributes:
        endpoints: The endpoints to try first. The first that answers names the other nodes.
        timeout_s: Limit in seconds for opening a connection, and for one answer of a control operation.
        dial: Function of (host, port, timeout in seconds) that connects where this machine cannot do so directly. It
            raises OSError if it fails.
    """

    endpoints: tuple[Endpoint, ...] = (Endpoint("127.0.0.1"),)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    timeout_s: float = 30.0
    dial: Dial | None = field(default=None, repr=False, compare=False)


class OnRebalance(Enum):
    """What a run does when partitions of its cache have moved to other nodes."""

    RESTART = "restart"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """[launch]: how runs are started and kept alive.

    Attributes:
        python: Interpreter of the workers on every host that does not configure its own.
        ports: First and last port that workers may listen on. None leaves the choice to each host.
        log_limit_bytes: How much of a worker's output is kept.
        max_restarts: How often a run is restarted before it fails.
        deadline_s: Seconds that a run may take, restarts included. None means no limit.
        warm_s: Seconds for which hosts keep processes ready for the next run. 0 keeps none. None leaves it to the
            caller that starts the run.
        tunnel: Whether the tasks of runs reach each other only through SSH.
    """

    python: str | None = None
    ports: tuple[int, int] | None = None
    log_limit_bytes: int = 1 << 30
    max_restarts: int = 10
    deadline_s: float | None = None
    on_rebalance: OnRebalance = OnRebalance.RESTART
    warm_s: float | None = None
    tunnel: bool = False


@dataclass(frozen=True, slots=True)
class SshConfig:
    """[ssh]: how hosts are reached.

    Attributes:
        config: SSH configuration file to use instead of ~/.ssh/config.
        known_hosts: Known-hosts file to use instead of ~/.ssh/known_hosts.
        user: Account on all hosts, in place of the one in the SSH configuration.
        via: SSH host through which the cluster's own ports and the other hosts are reached.
    """

    config: Path | None = None
    known_hosts: Path | None = None
    user: str | None = None
    connect_timeout_s: float = 10.0
    via: str | None = None


@dataclass(frozen=True, slots=True)
class HostOptions:
    """[hosts.NAME]: what Ignite does not know about a machine.

    Attributes:
        name: Its name for users.
        addresses: Its addresses, as Ignite's nodes list them.
        node_ids: Ids or consistent ids of its nodes, where no address identifies them.
        ssh: Its name for SSH, by default `name`. "local" means this machine, without SSH.
        python: Interpreter of workers there.
        root: Directory of this package's own files there.
        tf_address: Address at which workers on other hosts reach its workers.
    """

    name: str
    addresses: tuple[str, ...] = ()
    node_ids: tuple[str, ...] = ()
    ssh: str | None = None
    python: str | None = None
    root: str | None = None
    tf_address: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of `ignite-tf.toml`.

    Attributes:
        cluster: The cluster. None means the embedded one.
        path: The file; None if there is none.
        notes: Lines to show to the user.
    """

    cluster: ConnectOptions | None = None
    launch: LaunchOptions = LaunchOptions()
    ssh: SshConfig = SshConfig()
    hosts: tuple[HostOptions, ...] = ()
    path: Path | None = None
    notes: tuple[str, ...] = ()


def environment(prefix: str, names: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the PREFIX + NAME variables that are set and not empty, by lower-case name."""
    source = os.environ if env is None else env
    values = {name.lower(): source.get(prefix + name.upper(), "") for name in names}
    return {name: value for name, value in values.items() if value}


def cache_dir(*, make: bool = True) -> Path:
    """Return the directory of files that can be fetched or made again, such as jars. With `make`, create it."""
    import platformdirs

    path = Path(platformdirs.user_cache_dir("ignite_tf_magic", appauthor=False))
    return _private(path) if make else path


def state_dir() -> Path:
    """Return the directory of runs and embedded nodes. Created on first use, accessible to its owner only.

    It is IGNITE_TF_HOME, or else a directory with the name of this host in the user's state directory, because several
    hosts may share a home directory.
    """
    if home := os.environ.get("IGNITE_TF_HOME"):
        return _private(Path(home))
    import platformdirs

    everything = Path(platformdirs.user_state_dir("ignite_tf_magic", appauthor=False))
    _private(everything)
    if any((everything / name).is_dir() for name in ("agents", "runs", "embedded")):
        return everything  # created before each host had its own directory
    return _private(everything / socket.gethostname().partition(".")[0])


def timeouts_divisor(env: Mapping[str, str] | None = None) -> float:
    """Return the divisor for the waiting times of runs: IGNITE_TF_TIMINGS_DIVISOR, for fault-injection tests.

    Raises:
        ConfigError: It is not a number from 1 to below 100.
    """
    text = (os.environ if env is None else env).get("IGNITE_TF_TIMINGS_DIVISOR", "1")
    try:
        divisor = float(text)
    except ValueError:
        divisor = 0.0
    if not 1.0 <= divisor < 100.0:
        raise ConfigError(f"IGNITE_TF_TIMINGS_DIVISOR={text!r}: it must be a number from 1 to 100")
    return divisor


def _private(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def configured_cluster(env: Mapping[str, str] | None = None) -> ConnectOptions | None:
    """Return the cluster named by IGNITE_TF_CLUSTER ("host:port,host:port") or by `ignite-tf.toml`.

    The file is the one in the working directory, or else the one in the user's configuration directory:

        [cluster]
        addresses = ["db1:10800", "db2:10800"]
        username = "reader"
        credentials_file = "/home/me/.ignite.json"
        certfile = "client.pem"

    File names are relative to the directory of `ignite-tf.toml`. `read_config` reads its other tables. None means that
    no cluster is configured, so the embedded one is used.

    Raises:
        ConfigError: An address or the file is malformed.
    """
    return _cluster(_found_file().table("cluster"), _named_cluster(env))


def _named_cluster(env: Mapping[str, str] | None) -> tuple[Endpoint, ...]:
    text = (os.environ if env is None else env).get("IGNITE_TF_CLUSTER", "")
    return tuple(Endpoint.parse(part) for part in text.split(",") if part.strip())


def _cluster(table: TomlTable, given: Sequence[Endpoint]) -> ConnectOptions | None:
    """Read [cluster]. Endpoints from elsewhere (`given`) replace its own."""
    table.allow("addresses", "username", "password", "credentials_file", *_FILES, *_TLS)
    own = _own_endpoints(table)
    named: dict[str, Any] = {key: table.text(key) for key in ("username", "password", "cert_password")}
    named |= {key: str(path) for key in _FILES if (path := table.path(key))}
    if named["password"] or named["cert_password"]:
        check_private(table.file)
    named["check_hostname"] = table.values.get("check_hostname", True)
    credentials = table.path("credentials_file")
    if not (given or own):
        return None
    if credentials:
        named |= read_credentials(credentials)
    return ConnectOptions(tuple(given) or own, named["username"], named["password"], tls_options(named))


def _own_endpoints(table: TomlTable) -> tuple[Endpoint, ...]:
    addresses = table.words("addresses")
    try:
        return tuple(map(Endpoint.parse, addresses))
    except ConfigError as error:
        raise ConfigError(f"{table.file}: [{table.name}] addresses: {error}") from error


def tls_options(named: Mapping[str, Any]) -> TlsOptions | None:
    """Build TLS options from certfile, keyfile, cert_password, cafile, check_hostname.

    Return None without a certfile and a cafile.
    """
    if not named.get("certfile") and not named.get("cafile"):
        return None
    return TlsOptions(
        named.get("certfile"),
        named.get("keyfile"),
        named.get("cert_password"),
        named.get("cafile"),
        check_hostname=str(named.get("check_hostname", "true")).lower() != "false",
    )


def read_config(path: Path | None = None, env: Mapping[str, str] | None = None) -> Config:
    """Read all of `ignite-tf.toml`.

    Args:
        path: The file. Its addresses in [cluster] take precedence over IGNITE_TF_CLUSTER. None means the file that
            `configured_cluster` finds, over which the variable takes precedence; without a file, all options have
            their defaults.
        env: Variables to use instead of the process's environment.

    Raises:
        ConfigError: The file cannot be read, or has an unknown key or a bad value. The message names it.
    """
    file = _found_file() if path is None else parse_toml(_read(path), path)
    return _config(file, _named_cluster(env), is_found=path is None)


def load_config_file(path: Path, env: Mapping[str, str] | None = None) -> Config:
    """Read the file that `-c` names: our TOML or Ignite's Spring XML, recognized by its content.

    Spring XML provides the cluster's addresses, and `Config.notes` with what else it demands of clients. All other
    options come from the `ignite-tf.toml` that `configured_cluster` finds.

    Raises:
        ConfigError: As for `read_config`, or the XML contains no address.
    """
    data = _read(path)
    if not looks_like_xml(data):
        return _config(parse_toml(data, path), _named_cluster(env), is_found=False)
    ignite_xml = read_spring_xml(data, str(path))
    endpoints = tuple(Endpoint(host, port) for host, port in ignite_xml.endpoints)
    return replace(_config(_found_file(), endpoints, is_found=True), notes=ignite_xml.notes)


def _config(file: TomlTable, given: Sequence[Endpoint], *, is_found: bool) -> Config:
    file.allow("cluster", "ssh", "launch", "hosts")
    cluster = file.table("cluster")
    own_first = not is_found and "addresses" in cluster.values
    return Config(
        cluster=_cluster(cluster, () if own_first else given),
        launch=_launch(file.table("launch")),
        ssh=_ssh(file.table("ssh")),
        hosts=_hosts(file.table("hosts")),
        path=file.file if file.values else None,
    )


def _launch(table: TomlTable) -> LaunchOptions:
    table.allow(
        "python", "ports", "log_limit", "max_restarts", "deadline_s", "on_rebalance", "warm_s", "tunnel"
    )
    default = LaunchOptions()
    choice = table.values.get("on_rebalance", default.on_rebalance.value)
    if choice not in [each.value for each in OnRebalance]:
        table.refuse("on_rebalance", " or ".join(f'"{each.value}"' for each in OnRebalance))
    max_restarts = table.count("max_restarts")
    return LaunchOptions(
        python=table.text("python"),
        ports=table.port_range("ports"),
        log_limit_bytes=table.num_bytes("log_limit") or default.log_limit_bytes,
        max_restarts=default.max_restarts if max_restarts is None else max_restarts,
        deadline_s=table.seconds("deadline_s"),
        on_rebalance=OnRebalance(choice),
        warm_s=table.seconds("warm_s", may_be_0=True),
        tunnel=table.flag("tunnel") or False,
    )


def _ssh(table: TomlTable) -> SshConfig:
    table.allow("config", "known_hosts", "user", "connect_timeout_s", "via")
    return SshConfig(
        config=table.path("config"),
        known_hosts=table.path("known_hosts"),
        user=table.word("user"),
        connect_timeout_s=table.seconds("connect_timeout_s") or SshConfig().connect_timeout_s,
        via=table.word("via"),
    )


def _hosts(table: TomlTable) -> tuple[HostOptions, ...]:
    hosts = tuple(_host(table, name, each) for name, each in table.tables())
    claims: dict[str, str] = {}
    for host in hosts:
        for claim in (*host.addresses, *host.node_ids):
            if claims.setdefault(claim, host.name) != host.name:
                raise ConfigError(
                    f"{table.file}: {claim} is both in [hosts.{claims[claim]}] and in [hosts.{host.name}]; "
                    "keep it in the one whose machine has it"
                )
    return hosts


def _host(hosts: TomlTable, name: str, table: TomlTable) -> HostOptions:
    if not is_word(name):
        raise ConfigError(
            f"{hosts.file}: [hosts.{name!r}]: a host's name has no blanks, no commas and no '-' in front"
        )
    table.allow("addresses", "node_ids", "ssh", "python", "root", "tf_address")
    addresses = table.words("addresses")
    for address in (*addresses, table.word("tf_address") or name):
        if ":" in address and not _is_ipv6(address):
            raise ConfigError(
                f"{table.file}: [{table.name}]: {address!r} has a port; a host's address has none"
            )
    return HostOptions(
        name=name,
        addresses=addresses,
        node_ids=table.words("node_ids"),
        ssh=table.word("ssh"),
        python=table.text("python"),
        root=table.text("root"),
        tf_address=table.word("tf_address"),
    )


def _is_ipv6(text: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(%\w+)?", text) is not None


def working_directory() -> Path:
    """Return the working directory of this process.

    Raises:
        ConfigError: It no longer exists.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the working directory of this process was removed or replaced; go to one that exists: "
            "cd in a shell, %cd in a notebook"
        ) from error


def _found_file() -> TomlTable:
    path = working_directory() / CONFIG_FILE
    if not path.is_file():
        import platformdirs

        path = Path(platformdirs.user_config_dir("ignite_tf_magic", appauthor=False)) / CONFIG_FILE
    if not path.is_file():
        return TomlTable(path)
    check_own(path)
    return parse_toml(_read(path), path)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB, too large for a configuration")
    return data


def read_credentials(path: Path) -> dict[str, str]:
    """Read a JSON file with username, password, certfile, keyfile, cert_password, cafile, check_hostname.

    Raises:
        ConfigError: The file cannot be read, is malformed, or is accessible to others than its owner.
    """
    try:
        check_private(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the credentials file {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the credentials file {path} must hold a JSON object")
    found = {name: value for name, value in content.items() if value not in (None, "")}
    for name, value in found.items():
        if not isinstance(value, str | bool):
            raise ConfigError(f"{name} in the credentials file {path} must be text; put it into quotes")
    return {name: str(value) for name, value in found.items()}


def embedded_endpoints() -> tuple[Endpoint, ...]:
    """Return the endpoints of this user's embedded cluster, from its record, or none if it is down.

    This function starts and checks nothing; `ignite_tf_magic.embedded` does that.
    """
    try:
        record = json.loads((state_dir() / "embedded" / "cluster.json").read_text(encoding="utf-8"))
        return tuple(Endpoint(node["host"], node["port"]) for node in record["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def jupyter_proxy_url(env: Mapping[str, str] | None = None) -> str | None:
    """Return the URL by which a browser reaches a port of this machine through Jupyter, with %PORT% as the port.

    It is TENSORBOARD_PROXY_URL if that is set, else the URL of a JupyterHub's proxy, or of jupyter-server-proxy if the
    kernel finds it installed. None means that the browser is assumed to run on this machine.
    """
    source = os.environ if env is None else env
    if given := source.get("TENSORBOARD_PROXY_URL"):
        return given
    base = source.get("JUPYTERHUB_SERVICE_PREFIX")
    if not base and importlib.util.find_spec("jupyter_server_proxy") is not None:
        base = _jupyter_base_url(source.get("JPY_PARENT_PID", ""))
    return f"{base.rstrip('/')}/proxy/%PORT%/" if base else None


def _jupyter_base_url(server_pid: str) -> str | None:
    """Return the base URL of the Jupyter server that started this kernel, or None if there is none."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        record = Path(jupyter_runtime_dir()) / f"jpserver-{int(server_pid)}.json"
        return str(json.loads(record.read_text(encoding="utf-8"))["base_url"])
    except (ImportError, OSError, ValueError, KeyError, TypeError):
        return None
