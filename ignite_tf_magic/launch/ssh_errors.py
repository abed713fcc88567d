"""Explains why an SSH connection failed, and what to do about it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import HostError, HostKeyRejected, HostUnreachable, SshAuthFailed
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.ssh_settings import Hop, Settings, key_fault, known_hosts_of, known_keys

if TYPE_CHECKING:
    import asyncssh


class OfferedKey:
    """The untrusted key that a host offered; `key` is None if the handshake did not get that far."""

    def __init__(self) -> None:
        self.key: asyncssh.SSHKey | None = None
        self.connection: asyncssh.SSHClientConnection | None = None

    @property
    def was_greeted(self) -> bool:
        """Whether sshd sent its greeting. One with too many logins closes the connection without it."""
        return self.connection is not None and bool(self.connection.get_extra_info("server_version"))


def key_watcher(offered: OfferedKey) -> Any:
    """Return a client class for asyncssh that rejects an unknown host key and stores it in `offered`."""
    import asyncssh

    class KeyWatcher(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            offered.connection = conn

        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            del host, addr, port
            offered.key = key
            return False

        def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            return self.validate_host_public_key(host, addr, port, key)

    return KeyWatcher


def explain(error: Exception, hop: Hop, settings: Settings, offered: OfferedKey, limit_s: float) -> HostError:
    """Convert an error that asyncssh raised while connecting into a HostError with advice."""
    import asyncssh

    where = f"{settings.host} port {settings.port}"
    if isinstance(error, asyncssh.HostKeyNotVerifiable) or offered.key is not None:
        return HostKeyRejected(hop.name, _about_key(error, hop, settings, offered))
    if isinstance(error, asyncssh.KeyExchangeFailed) and _lines(settings):
        return HostKeyRejected(hop.name, _about_key(error, hop, settings, offered))
    if isinstance(error, asyncssh.PermissionDenied):
        return SshAuthFailed(hop.name, _about_login(hop, settings))
    if isinstance(error, OSError) and error.filename:
        return SshAuthFailed(hop.name, f"a certificate cannot be read: {error}")
    if isinstance(error, asyncssh.KeyImportError):
        return SshAuthFailed(hop.name, f"a certificate cannot be used: {error}")
    return HostUnreachable(hop.name, f"{_about_network(error, where, limit_s)}; try: {hop.command()}")


def _about_network(error: Exception, where: str, limit_s: float) -> str:
    import asyncssh

    if isinstance(error, socket.gaierror):
        return f"its name does not resolve ({where}: {error.strerror})"
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer from {where} within {limit_s:g} s"
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refused the connection; is sshd running there?"
    if isinstance(error, asyncssh.ChannelOpenError):
        return f"the jump host cannot reach {where}: {error}"
    if isinstance(error, asyncssh.ConnectionLost | ConnectionError):
        return f"{where} closed the connection during the login ({error or 'no reason given'})"
    return f"{where}: {error or type(error).__name__}"


def _about_login(hop: Hop, settings: Settings) -> str:
    target = hop.command().removeprefix("ssh ")
    said = f"it does not accept any of our keys for user {settings.user!r}"
    for path in settings.key_files:
        if fault := key_fault(path):
            return f"{said}; {path} cannot be used: {fault}"
    return f"{said}; install one there: ssh-copy-id {target}"


def _about_key(error: Exception, hop: Hop, settings: Settings, offered: OfferedKey) -> str:
    files = [str(path) for path in settings.known_hosts]
    shown = ""
    if offered.key is not None:
        shown = f" (it shows {offered.key.get_algorithm()} {offered.key.get_fingerprint()})"
    name = f"[{settings.known_name}]:{settings.known_port}" if settings.known_port else settings.known_name
    lines = _lines(settings)
    if lines:
        path, number, is_revoked = lines[0]
        if is_revoked:
            return f"{path} line {number} revokes its key{shown}; ask its administrator for the new one"
        forget = f"ssh-keygen -R '{name}' -f {path}; {hop.command()}"
        return (
            f"its key is not the one in {path} line {number}{shown}: the host was reinstalled, or someone "
            f"intercepts the connection ({error}). Ask its administrator; if the new key is right: {forget}"
        )
    if not files:
        return f"its key is not known{shown}, and its ssh configuration names no file of known hosts"
    learn = f"ssh-keyscan -p {settings.port} {settings.host} >> {files[0]}"
    return (
        f"its key is not known{shown}: {', '.join(files)} has no line for {name} ({error}). Log in once and "
        f"compare the fingerprint: {hop.command()}; or, on a network that you trust: {learn}"
    )


def _lines(settings: Settings) -> list[tuple[Path, int, bool]]:
    """Return the lines with a host's keys in known-hosts files, as (file, line number, whether it revokes a key).

    Lines that revoke a key come first.
    """
    found = []
    for path in settings.known_hosts:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for number, line in enumerate(text.splitlines(), 1):
            keys, _, revoked, *_ = known_keys(known_hosts_of(line), settings)
            found += [(path, number, bool(revoked))] if keys or revoked else []
    return sorted(found, key=lambda line: not line[2])
