"""Options of an embedded cluster. This module only defines values; it starts, reads and writes nothing."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.options import TlsOptions, environment

IGNITE_VERSION = "2.17.0"
"""The Apache Ignite that is started unless an option or IGNITE_TF_IGNITE_VERSION says otherwise."""

IDLE_TIMEOUT_S = 30 * 60.0

_SIZE = re.compile(r"(\d+)([kmg])", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MIN_HEAP_BYTES = 128 << 20
_MIN_REGION_BYTES = 32 << 20


class Lifetime(enum.Enum):
    """When an embedded cluster ends."""

    UNTIL_DOWN = "until_down"
    """Only by `down`; it outlives the process that started it."""

    UNTIL_IDLE = "until_idle"
    """By `down`, or by its guardian when no client was connected for the idle time."""


@dataclass(frozen=True, slots=True)
class NodeTls:
    """Server side of TLS on the nodes' client ports, for tests and demonstrations.

    Attributes:
        keystore: PKCS12 file with the node's certificate and key.
        truststore: PKCS12 file with the authorities whose clients are trusted.
        require_client_certificate: Whether clients without a certificate are refused.
        client: How a client on this machine connects; becomes part of `connect_options`. Its
            key must not need a password, because passwords are not recorded.
    """

    keystore: str
    keystore_password: str = field(repr=False)
    truststore: str
    truststore_password: str = field(repr=False)
    client: TlsOptions
    require_client_certificate: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """Options of an embedded cluster: number and size of its nodes, and the Ignite version.

    Attributes:
        heap: Java heap of one node, such as "512m" or "2g".
        region: Memory of one node for data outside the heap, in the same format; allocated as it fills.
        persist: Whether data is kept on disk after `down`.
        ignite_version: Default: IGNITE_TF_IGNITE_VERSION, else `IGNITE_VERSION`.
        authentication: Whether clients must log in (user and password "ignite"); needs `persist`.
        idle_timeout_s: Seconds without a client after which an `UNTIL_IDLE` cluster ends.
        start_timeout_s: Limit in seconds for the nodes to become ready, excluding downloads.
    """

    num_nodes: int = 3
    heap: str = "512m"
    region: str = "1g"
    persist: bool = False
    ignite_version: str | None = None
    authentication: bool = False
    tls: NodeTls | None = None
    idle_timeout_s: float = IDLE_TIMEOUT_S
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid options."""
        if not 1 <= self.num_nodes <= 32:
            raise ConfigError(f"{self.num_nodes} nodes cannot be started on one machine; give 1 to 32")
        if self.idle_timeout_s <= 0 or self.start_timeout_s <= 0:
            raise ConfigError("the idle time and the start time limit must be more than 0 seconds")
        if self.authentication and not self.persist:
            raise ConfigError("Ignite keeps its users on disk: authentication=True needs persist=True")
        _require_size("heap", self.heap, _MIN_HEAP_BYTES)
        _require_size("region", self.region, _MIN_REGION_BYTES)

    @property
    def region_bytes(self) -> int:
        """The region size in bytes."""
        return parse_size("region", self.region)

    def resolved_version(self) -> str:
        """Return the Ignite version to start: from the option, else the environment, else the constant."""
        version = self.ignite_version or environment("IGNITE_TF_", ["ignite_version"]).get("ignite_version")
        if version and not re.fullmatch(r"\d+(\.\d+)+([.-][A-Za-z0-9]+)*", version):
            raise ConfigError(f"{version!r} is not an Ignite version; write one like {IGNITE_VERSION}")
        return version or IGNITE_VERSION


def parse_size(name: str, text: str) -> int:
    """Convert a size such as "512m" or "2g" to bytes.

    Raises:
        ConfigError: The text has another format.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{name} {text!r} is not a size; write a whole number and k, m or g, as in 512m or 2g"
        )
    return int(match[1]) * _UNITS[match[2].lower()]


def count_nodes(number: int) -> str:
    """Return a phrase such as "1 Ignite node" or "3 Ignite nodes"."""
    return f"{number} Ignite node" if number == 1 else f"{number} Ignite nodes"


def _require_size(name: str, text: str, least: int) -> None:
    if parse_size(name, text) < least:
        raise ConfigError(f"{name} {text!r} is too small for an Ignite node; give at least {least >> 20}m")
