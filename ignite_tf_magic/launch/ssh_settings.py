"""Settings by which a host is reached over ssh: our options, and the user's ssh configuration."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConfigError, HostKeyRejected, HostUnreachable
from ignite_tf_magic.launch.jobs import LinkTimeouts

if TYPE_CHECKING:
    import asyncssh

SSH_PORT = 22
_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
_NOT_IN_NAMES = frozenset(" '`\"$\\;&<>|(){}")  # as OpenSSH has it
_KEEPALIVE_COUNT = 3
_FAST_CIPHERS = (
    "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"  # asyncssh's first choice takes 3 times as long
)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """What is asked of ssh; what is not given here comes from the user's configuration.

    Attributes:
        config_files: Files like ~/.ssh/config, the first word wins; None is the user's and the system's.
        known_hosts: Files with the keys of hosts; None is those that the configuration names.
        identities: Files with private keys; none given are those that the configuration names, and the agent's.
        user: Whom to log in as.
        port: Where sshd listens.
        via: Jump hosts, as for `ssh -J`.
    """

    config_files: tuple[str, ...] | None = None
    known_hosts: tuple[str, ...] | None = None
    identities: tuple[str, ...] = ()
    user: str | None = None
    port: int | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One host to log in to, by its ssh name."""

    name: str
    options: SshOptions = field(default_factory=SshOptions)

    def command(self) -> str:
        """Return the command with which a user would go there."""
        options = self.options
        words = ["ssh"]
        words += ["-F", options.config_files[0]] if options.config_files else []
        words += ["-o", f"UserKnownHostsFile={options.known_hosts[0]}"] if options.known_hosts else []
        for identity in options.identities:
            words += ["-i", identity]
        words += ["-p", str(options.port)] if options.port else []
        words += ["-J", options.via] if options.via else []
        words += [f"{options.user}@{self.name}" if options.user else self.name]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration makes of a hop.

    Attributes:
        host: Name or address to connect to.
        port: Where sshd listens there.
        known_name: The name under which the host's key is looked up.
        known_hosts: The files in which it is looked up; they need not exist.
        key_files: Private keys that may be offered, besides those of the agent.
        jump: The host through which to go.
        base: asyncssh's own form of all that.
    """

    host: str
    port: int
    user: str
    known_name: str
    known_hosts: tuple[Path, ...]
    key_files: tuple[Path, ...]
    jump: Hop | None
    base: asyncssh.SSHClientConnectionOptions


def read_settings(hop: Hop) -> Settings:
    """Read the configuration for a hop; reads files.

    Raises:
        ConfigError: The configuration cannot be read.
        HostKeyRejected: It says that host keys need not be checked.
        HostUnreachable: No host can be called so.
    """
    import asyncssh

    _check_name(hop.name)
    asked = {"username": hop.options.user, "port": hop.options.port, "tunnel": hop.options.via}
    given = {name: value for name, value in asked.items() if value is not None}
    files = _config_files(hop.options)
    try:
        base = asyncssh.SSHClientConnectionOptions(
            config=files, host=hop.name, client_keys=None, agent_forwarding=False, command=None, **given
        )
    except (ValueError, OSError) as error:
        read = ", ".join(files) or "the options"
        raise ConfigError(f"cannot use the ssh configuration for {hop.name!r} ({read}): {error}") from error
    if base.known_hosts is None and hop.options.known_hosts is None:
        reason = (
            "its ssh configuration says `UserKnownHostsFile none`, and hosts are never taken unchecked here"
        )
        raise HostKeyRejected(hop.name, f"{reason}; remove that line, then: {hop.command()}")
    return Settings(
        host=base.host,
        port=base.port,
        user=base.username,
        known_name=base.host_key_alias or base.host,
        known_hosts=_known_hosts(hop.options, base),
        key_files=_key_files(hop.options, base),
        jump=_jump(hop, base.tunnel),
        base=base,
    )


def _check_name(name: str) -> None:
    """Refuse what a shell would read as more than a name: ProxyCommand gets it, and nodes of a cluster tell it."""
    if name.startswith("-") or not name.isprintable() or _NOT_IN_NAMES.intersection(name):
        raise HostUnreachable(
            name,
            f"{name!r} cannot be the name of a host for ssh; name the host in ignite-tf.toml: [hosts.NAME] ssh",
        )


def _config_files(options: SshOptions) -> list[str]:
    if options.config_files is not None:
        return [str(Path(path).expanduser()) for path in options.config_files]
    defaults = (str(Path("~/.ssh/config").expanduser()), _SYSTEM_CONFIG)
    return [path for path in defaults if os.access(path, os.R_OK)]


def _known_hosts(options: SshOptions, base: asyncssh.SSHClientConnectionOptions) -> tuple[Path, ...]:
    configured: Any = base.known_hosts
    files: Sequence[str] = options.known_hosts or configured or _KNOWN_HOSTS
    return tuple(Path(path).expanduser() for path in files)


def _key_files(options: SshOptions, base: asyncssh.SSHClientConnectionOptions) -> tuple[Path, ...]:
    """Return the key files that exist; as ssh does, those that do not are no error, unless they were given to us."""
    if options.identities:
        return tuple(Path(path).expanduser() for path in options.identities)
    configured: Any = base.config.get("IdentityFile", ())
    return tuple(path for path in (Path(name).expanduser() for name in configured) if path.is_file())


def _jump(hop: Hop, spec: object) -> Hop | None:
    """Return the host before the target; None when that is the target itself, as under a wildcard."""
    if not isinstance(spec, str) or not spec:
        return None
    before = jump_hop(hop.options, spec)
    return None if before.name == hop.name else before


def jump_hop(options: SshOptions, spec: str) -> Hop:
    """Read `-J`'s notation: the last host listed is the one before the target, the others lead to it."""
    before, _, last = spec.rpartition(",")
    user, _, address = last.rpartition("@")
    name, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        name, port = address, ""
    return Hop(
        name, replace(options, user=user or None, port=int(port) if port else None, via=before or None)
    )


def connect_arguments(settings: Settings, timeouts: LinkTimeouts) -> dict[str, Any]:
    """Return asyncssh's arguments for a connection: never ask, always check, notice a dead link."""
    keys = {"client_keys": [str(path) for path in settings.key_files]} if settings.key_files else {}
    fast = {} if settings.base.config.get("Ciphers") else {"encryption_algs": _FAST_CIPHERS}
    return {
        "config": None,  # `base` has read it
        "options": settings.base,
        "client_keys": (),
        "ignore_encrypted": True,
        "password_auth": False,
        "kbdint_auth": False,
        "keepalive_interval": timeouts.keepalive_s,
        "keepalive_count_max": _KEEPALIVE_COUNT,
        "connect_timeout": timeouts.connect_s,
        "login_timeout": timeouts.connect_s,
        **keys,
        **fast,
    }


def stamp(paths: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Tell files by their names, sizes and times, so that what was read of them can be kept."""
    found = [(path, path.stat()) for path in paths if path.is_file()]
    return tuple((str(path), status.st_size, status.st_mtime_ns) for path, status in found)


def read_known_hosts(hop: Hop, paths: Sequence[Path]) -> asyncssh.SSHKnownHosts:
    """Read the keys of hosts from those files that exist."""
    import asyncssh

    known = asyncssh.SSHKnownHosts()
    for path in paths:
        try:
            known.load(path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "")
        except (OSError, ValueError) as error:
            raise HostKeyRejected(hop.name, f"cannot read {path}: {error}; mend that line") from error
    return known
