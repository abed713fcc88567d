"""Tests that our transport and `ssh` interpret configurations alike: both reach the same place, or neither does."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ignite_tf_magic.errors import ConfigError, HostError
from ignite_tf_magic.launch import ssh_settings
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.loop import loop_thread
from ignite_tf_magic.launch.ssh import SshOptions, SshTransport
from tests.launch.sshd import Sshd
from tests.launch.test_ssh_transport import _run, agent_holding

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH client here")

USER = getpass.getuser()
WHERE = "echo $SSH_CONNECTION $FROM_CONFIG"
RELAY = """
import socket, sys, threading, os
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    os.write(1, data)
"""


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        config: Lines of ssh_config; `{...}` stand for paths and ports of `Place`.
        known: Lines of the file `known` with the known hosts.
        name: The host name passed to ssh.
        agent: The key that the SSH agent holds.
        reaches: Whether `ssh` is expected to reach the host.
    """

    config: str
    known: str = "{known_line}"
    name: str = "box"
    agent: str | None = None
    reaches: bool = True


AT = "HostName 127.0.1.1\nPort {port}\n"
KEY = "IdentityFile {user_key}\n"
KNOWN = "UserKnownHostsFile {dir}/known\n"
ALL = f"Host *\n{AT}{KEY}{KNOWN}IdentityAgent none\nBatchMode yes\n"
GATE = "Host gate\nHostName 127.0.1.1\nPort {gate_port}\n"
JUMPED = f"{GATE}ProxyJump none\nHost box\n"
BOTH = "{known_line}\n{gate_line}"
NO_AGENT = "IdentityAgent none\n"
WITHOUT_PORT = ALL.replace("Port {port}", "Port 1")
WITHOUT_NAME = ALL.replace("HostName 127.0.1.1\n", "")
WITHOUT_KEY = ALL.replace(KEY, "")

CASES = {
    "plain": Case(ALL),
    "equals sign": Case(f"Host box\nPort={{port}}\n{ALL}"),
    "unknown host": Case(ALL, known="", reaches=False),
    "global known hosts alone": Case(f"UserKnownHostsFile none\nGlobalKnownHostsFile {{dir}}/known\n{ALL}"),
    "second file of known hosts": Case(f"UserKnownHostsFile {{dir}}/missing {{dir}}/known\n{ALL}"),
    "file of known hosts with a space": Case(
        f'UserKnownHostsFile {{dir}}/none "{{dir}}/a space/known"\n{ALL}'
    ),
    "known hosts of nobody": Case(
        f"UserKnownHostsFile /dev/null\nGlobalKnownHostsFile none\n{ALL}", reaches=False
    ),
    "known hosts by a variable": Case(f"UserKnownHostsFile ${{{{DIR}}}}/known\n{ALL}"),
    "hashed names": Case(ALL, known="{hashed_line}"),
    "wildcard": Case(ALL, known="[127.0.1.*]:{port} {host_key}"),
    "question mark": Case(ALL, known="[127.0.?.1]:* {host_key}"),
    "everything": Case(ALL, known="* {host_key}"),
    "negated": Case(ALL, known="!127.0.1.1,!*:{port},* {host_key}", reaches=False),
    "another port": Case(ALL, known="[127.0.1.1]:1 {host_key}", reaches=False),
    "name without port": Case(ALL, known="127.0.1.1 {host_key}"),
    "another key": Case(ALL, known="[127.0.1.1]:{port} {gate_key}", reaches=False),
    "one of two keys": Case(ALL, known="[127.0.1.1]:{port} {gate_key}\n{known_line}"),
    "revoked": Case(ALL, known="{known_line}\n@revoked * {host_key}", reaches=False),
    "damaged lines of known hosts": Case(
        ALL, known="nonsense\n[127.0.1.1]:{port} ssh-rsa AAAA\n{known_line}"
    ),
    "only the address is known": Case(
        f"Host box\nHostName localhost\n{ALL}", known="[127.0.0.1]:{port} {host_key}", reaches=False
    ),
    "alias of the key": Case(f"HostKeyAlias store\n{ALL}", known="store {host_key}"),
    "alias that is not known": Case(f"HostKeyAlias store\n{ALL}", reaches=False),
    "match exec": Case(f'Match exec "test %n = box"\nPort {{port}}\n{WITHOUT_PORT}'),
    "match exec that fails": Case(f"Match exec false\nPort {{port}}\n{WITHOUT_PORT}", reaches=False),
    "match final": Case(f"Match final host 127.0.1.1\nIdentityFile {{user_key}}\n{WITHOUT_KEY}"),
    "match original host": Case(f"Match originalhost box,bax\nUser {USER}\n{ALL}"),
    "match user": Case(f"Match user {USER}\nPort {{port}}\n{WITHOUT_PORT}"),
    "match local user": Case(f"Match localuser nobody-here\nPort 1\n{ALL}"),
    "negated pattern": Case(f"Host b* !box\nPort 1\n{ALL}"),
    "host name of the alias": Case(f"Host 1\nHostName 127.0.1.%h\n{ALL}", name="1"),
    "include": Case("Include {dir}/parts/*.conf\n"),
    "include in a block": Case(f"Host other\nInclude {{dir}}/wrong\n{ALL}"),
    "user of another name": Case(f"User nobody-here\n{ALL}", reaches=False),
    "user before the host": Case(f"User nobody-here\n{ALL}", name=f"{USER}@box"),
    "address as URI": Case(ALL.replace("Port {port}\n", ""), name=f"ssh://{USER}@127.0.1.1:{{port}}"),
    "missing key beside a good one": Case(f"IdentityFile {{dir}}/missing\n{ALL}"),
    "damaged key beside a good one": Case(f"IdentityFile {{dir}}/damaged\n{ALL}"),
    "key that others can read": Case(f"IdentityFile {{dir}}/open_key\n{WITHOUT_KEY}", reaches=False),
    "key by a variable": Case(f"IdentityFile ${{{{DIR}}}}/%u.key\n{WITHOUT_KEY}"),
    "key with a space": Case(f'IdentityFile "{{dir}}/a space/key"\n{WITHOUT_KEY}'),
    "wrong key": Case(f"IdentityFile {{wrong_key}}\n{WITHOUT_KEY}", reaches=False),
    "key of the agent": Case(ALL.replace(KEY, "").replace(NO_AGENT, ""), agent="user_key"),
    "public key of one in the agent": Case(
        f"IdentitiesOnly yes\nIdentityFile {{user_key}}.pub\n{ALL.replace(KEY, '').replace(NO_AGENT, '')}",
        agent="user_key",
    ),
    "agent's key that is not named": Case(
        f"IdentitiesOnly yes\nIdentityFile {{wrong_key}}\n{ALL.replace(KEY, '').replace(NO_AGENT, '')}",
        agent="user_key",
        reaches=False,
    ),
    "agent by a variable": Case(f"IdentityAgent $OTHER_AGENT\n{WITHOUT_KEY}", agent="user_key"),
    "certificate of its own file": Case(
        f"CertificateFile {{certificate}}\nIdentityFile {{certified_key}}\n{WITHOUT_KEY}"
    ),
    "no public keys": Case(f"PubkeyAuthentication no\n{ALL}", reaches=False),
    "cipher": Case(f"Ciphers aes256-ctr\n{ALL}"),
    "unknown cipher": Case(f"Ciphers no-such\n{ALL}", reaches=False),
    "kind of key that the server lacks": Case(f"HostKeyAlgorithms rsa-sha2-512\n{ALL}", reaches=False),
    "more kinds of keys": Case(f"HostKeyAlgorithms +ssh-rsa\nKexAlgorithms -diffie*\n{ALL}"),
    "address family": Case(f"AddressFamily inet6\n{ALL}", reaches=False),
    "limits and variables": Case(f'RekeyLimit 1G 1h\nCompression yes\nSetEnv FROM_CONFIG="a b"\n{ALL}'),
    "unknown keyword": Case(f"NoSuchThing yes\n{ALL}", reaches=False),
    "proxy command": Case(f"ProxyCommand {{python}} {{relay}} %h %p\n{ALL}"),
    "proxy command with quotes": Case(
        f"ProxyCommand sh -c \"exec '{{python}}' {{relay}} \\$0 \\$1\" %h '%p'\n{ALL}"
    ),
    "proxy command with a variable": Case(f"ProxyCommand $PYTHON {{relay}} %h %p\n{ALL}"),
    "proxy command that fails": Case(f"ProxyCommand false\n{ALL}", reaches=False),
    "no proxy command": Case(f"ProxyCommand none\nHost *\nProxyCommand false\n{ALL}"),
    "proxy jump": Case(f"{JUMPED}ProxyJump gate\n{ALL}", known=BOTH),
    "proxy jump as URI": Case(
        f"{JUMPED}ProxyJump ssh://{USER}@127.0.1.1:{{gate_port}}\n{ALL}Host 127.0.1.1\n", known=BOTH
    ),
    "proxy jump by address": Case(f"{JUMPED}ProxyJump {USER}@127.0.1.1:{{gate_port}}\n{ALL}", known=BOTH),
    "proxy jump over IPv6": Case(
        f"{JUMPED}HostName 127.0.1.1\nProxyJump {USER}@[::1]:{{gate_port}}\n{WITHOUT_NAME}",
        known="{known_line}\n[::1]:{gate_port} {gate_key}",
    ),
    "two jumps": Case(
        f"Host last\nHostName 127.0.1.1\nPort {{gate_port}}\n{JUMPED}ProxyJump gate,last\n{ALL}", known=BOTH
    ),
    "jump to nowhere": Case(f"Host nowhere\nPort 1\nHost box\nProxyJump nowhere\n{ALL}", reaches=False),
}

if not has_ipv6():
    del CASES["proxy jump over IPv6"]


class Place:
    """Two servers, with keys and files that configurations refer to."""

    def __init__(self, folder: Path) -> None:
        self.box = Sshd(folder / "box")
        self.gate = Sshd(folder / "gate")
        with self.gate.sshd_config.open("a") as file:
            file.write(f"ListenAddress [::1]:{self.gate.port}\n")
        shutil.copy(self.box.authorized_keys, self.gate.authorized_keys)
        self.wrong_key = self.box.make_key("wrong_key")
        self.certified_key = self.box.make_key("certified_key")
        authority = self.box.make_key("authority")
        sign = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", USER, self.certified_key]
        subprocess.run(sign, check=True, capture_output=True)
        self.certificate = self.box.folder / "certificate.pub"
        (self.box.folder / "certified_key-cert.pub").rename(self.certificate)
        with self.box.authorized_keys.open("a") as file:
            file.write(f"cert-authority {_public(authority)}\n")
        self.relay = folder / "relay.py"
        self.relay.write_text(RELAY)

    def values(self, folder: Path) -> dict[str, object]:
        """Return the values of the placeholders in configurations."""
        return {
            **{name: getattr(self, name) for name in ("wrong_key", "certified_key", "certificate", "relay")},
            "user_key": self.box.user_key,
            "host_key": _public(self.box.host_key),
            "gate_key": _public(self.gate.host_key),
            "port": self.box.port,
            "gate_port": self.gate.port,
            "known_line": f"[127.0.1.1]:{self.box.port} {_public(self.box.host_key)}",
            "gate_line": f"[127.0.1.1]:{self.gate.port} {_public(self.gate.host_key)}",
            "python": sys.executable,
            "dir": folder,
        }


def _public(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"))
    with made.box, made.gate:
        yield made


def _prepare(place: Place, case: Case, folder: Path) -> tuple[Path, str]:
    """Write all files of a case; return the configuration's path and the host's name."""
    values = place.values(folder)
    (folder / "a space").mkdir()
    (folder / "known").write_text(str(values["known_line"]))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", folder / "known"], check=True, capture_output=True)
    values["hashed_line"] = (folder / "known").read_text()
    for path in (folder / "known", folder / "a space" / "known"):
        path.write_text(case.known.format(**values) + "\n")
    for name in ("a space/key", f"{USER}.key", "open_key"):
        shutil.copy(place.box.user_key, folder / name)
    (folder / "open_key").chmod(0o644)
    (folder / "damaged").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
    (folder / "damaged").chmod(0o600)
    (folder / "wrong").write_text("Port 1\n")
    (folder / "parts").mkdir()
    (folder / "parts" / "one.conf").write_text(ALL.format(**values))
    config = folder / "config"
    config.write_text(case.config.format(**values))
    return config, case.name.format(**values)


def _by_ssh(config: Path, name: str) -> str | None:
    command = ["ssh", "-F", config, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", name, WHERE]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    return _place(done.stdout) if done.returncode == 0 else None


def _by_us(config: Path, name: str) -> str | None:
    transport = SshTransport(name, SshOptions(config_file=str(config)))
    try:
        output, code, said = loop_thread().run(
            _run(transport, ["sh", "-c", WHERE], LinkTimeouts(connect_s=20))
        )
    except (HostError, ConfigError):
        return None
    assert code == 0, said
    return _place(output.decode())


def _place(printed: str) -> str:
    """Return where a command ran, without its client's source port."""
    words = printed.split()
    return " ".join([words[0], *words[2:]])


@pytest.mark.parametrize("name", CASES)
def test_we_get_where_ssh_gets(name, place, tmp_path, monkeypatch):
    case = CASES[name]
    config, host = _prepare(place, case, tmp_path)
    monkeypatch.setenv("DIR", str(tmp_path))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    if case.agent is None:
        by_ssh, by_us = _by_ssh(config, host), _by_us(config, host)
    else:
        with agent_holding(place.box.folder / case.agent, tmp_path, "") as agent:
            monkeypatch.setenv("OTHER_AGENT" if "OTHER_AGENT" in case.config else "SSH_AUTH_SOCK", str(agent))
            by_ssh, by_us = _by_ssh(config, host), _by_us(config, host)
    assert (by_ssh is not None) == case.reaches
    assert by_us == by_ssh


@pytest.mark.parametrize("name", ["plain", "hashed names", "proxy jump", "proxy command", "key with a space"])
def test_without_the_client_of_openssh_asyncssh_reads_the_configuration(name, place, tmp_path, monkeypatch):
    monkeypatch.setattr(ssh_settings, "find_ssh", lambda: None)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config, host = _prepare(place, CASES[name], tmp_path)
    assert _by_us(config, host) is not None


def test_revoked_host_keys_in_a_file_of_their_own_are_refused_by_name(place, tmp_path):
    config, host = _prepare(place, Case(f"RevokedHostKeys {os.devnull}\n{ALL}"), tmp_path)
    with pytest.raises(ConfigError, match="RevokedHostKeys is not supported; use `@revoked` lines"):
        loop_thread().run(
            _run(SshTransport(host, SshOptions(config_file=str(config))), ["true"], LinkTimeouts())
        )
