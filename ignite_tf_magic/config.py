"""Options: how to reach a cluster, from arguments, a TOML file and the environment.

Values here are frozen and carry no behaviour beyond reading themselves. Secrets never appear in a
`repr`. The environment is read only when one of the functions here is called, never at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ignite_tf_magic.errors import ConfigError

DEFAULT_PORT = 10800


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
