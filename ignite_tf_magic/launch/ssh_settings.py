"""Reads the SSH configuration of a host with `ssh -G`, and converts it to asyncssh's options.

OpenSSH's own client reads the configuration, so that every keyword means what it means to `ssh`. Where that client is
not installed, asyncssh reads the files. It does not know `Match final` and some other keywords.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConfigError, HostUnreachable
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.lazy_asyncio import asyncio

if TYPE_CHECKING:
    import asyncssh

SSH_PORT = 22
_ASK_TIMEOUT_S = 20.0  # `Match exec` runs programs
_NOT_IN_NAMES = frozenset(" '`\"$\\;&<>|(){}")  # the characters that OpenSSH rejects
_JUMP = re.compile(r"(?:ssh://)?(?:(.+)@)?(?:\[(.+)\]|(.+?))(?::(\d+))?/?")
_TOKEN = re.compile(r"%(.)|\$\{(\w+)\}")
_KEEPALIVE_COUNT = 3
_FAST_CIPHERS = (
    "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"  # asyncssh's own first choice takes 3 times as long
)
# Keywords that asyncssh reads by itself. They are passed on where they differ from ssh's defaults.
_PASSED_ON = (
    *("AddressFamily", "BindAddress", "CASignatureAlgorithms", "Ciphers", "Compression", "HostKeyAlgorithms"),
    *("HostKeyAlias", "KexAlgorithms", "MACs", "PreferredAuthentications", "RekeyLimit", "SendEnv"),
)
_ASYNCSSH_KNOWS = (
    *("CertificateFile", "GlobalKnownHostsFile", "GSSAPIAuthentication", "GSSAPIDelegateCredentials"),
    *("GSSAPIKeyExchange", "IdentitiesOnly", "IdentityAgent", "IdentityFile", "ProxyCommand", "ProxyJump"),
    *("PubkeyAuthentication", "SetEnv", "UserKnownHostsFile", *_PASSED_ON),
)

Answer = Mapping[str, Sequence[str]]
"""The values of each keyword, in lower case, as `ssh -G` prints them."""


@dataclass(frozen=True, slots=True)
class SshOptions:
    """Options of the `ssh` command line. The user's configuration decides the rest.

    Attributes:
        config_file: Replaces the user's and the system's configuration (-F); "none" means no configuration file.
        known_hosts: Replaces the user's known-hosts file (-o UserKnownHostsFile).
        user: Account to log in to (-l).
        port: Port of sshd (-p).
        via: Jump hosts (-J).
    """

    config_file: str | None = None
    known_hosts: str | None = None
    user: str | None = None
    port: int | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One host to log in to, by its ssh name."""

    name: str
    options: SshOptions = field(default_factory=SshOptions)

    def arguments(self) -> list[str]:
        """Return the arguments with which `ssh` connects to the host."""
        options = self.options
        via = options.via if options.via and jump_hop(options, options.via).name != self.name else None
        words = ["-F", os.path.expanduser(options.config_file)] if options.config_file else []  # noqa: PTH111
        words += ["-o", f"UserKnownHostsFile={options.known_hosts}"] if options.known_hosts else []
        words += ["-p", str(options.port)] if options.port else []
        words += ["-J", via] if via else []
        words += ["-l", options.user] if options.user else []
        return [*words, self.name]

    def command(self) -> str:
        """Return the command with which a user would connect to the host."""
        return shlex.join(["ssh", *self.arguments()])


@dataclass(frozen=True, slots=True)
class Settings:
    """The SSH configuration of a hop.

    Attributes:
        host: Name or address to connect to.
        port: Port of sshd.
        user: Account to log in to.
        known_name: The name of the host's key in known-hosts files.
        known_port: The port that is part of that name; None for an alias, and at port 22.
        known_hosts: Known-hosts files; they need not exist.
        key_files: Private keys, or public ones whose private key the agent has; they exist.
        certificates: Certificates of keys; they exist.
        agent: The socket of the agent, or "".
        only_key_files: Use only those keys of the agent that are in `key_files` (IdentitiesOnly).
        jump: The jump host, if there is one.
        base: The other options, in asyncssh's form.
    """

    host: str
    port: int
    user: str
    known_name: str
    known_port: int | None
    known_hosts: tuple[Path, ...]
    key_files: tuple[Path, ...]
    certificates: tuple[Path, ...]
    agent: str
    only_key_files: bool
    jump: Hop | None
    base: asyncssh.SSHClientConnectionOptions


def read_settings(hop: Hop) -> Settings:
    """Read the configuration for a hop. Blocks: reads files, and runs `ssh -G` at most twice.

    Raises:
        ConfigError: The configuration cannot be read, or needs something that is not supported.
        HostUnreachable: No host can have this name.
    """
    _check_name(hop.name)
    ssh = find_ssh()
    try:
        answer = _ask_ssh(ssh, tuple(hop.arguments())) if ssh else _ask_asyncssh(hop)
        if _one(answer, "revokedhostkeys", "none") != "none":
            raise ValueError("RevokedHostKeys is not supported; use `@revoked` lines of known_hosts")
        return _settings(hop, answer, _defaults(ssh) if ssh else {})
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        tried = f"ssh -G {shlex.join(hop.arguments())}" if ssh else "read by asyncssh"
        raise ConfigError(f"cannot use the ssh configuration for {hop.name!r} ({tried}): {error}") from error


def find_ssh() -> str | None:
    """Return the path of OpenSSH's client, if it is installed."""
    return shutil.which("ssh")


def _check_name(name: str) -> None:
    """Reject a name with shell syntax: ProxyCommand passes it to a shell, and cluster nodes choose it."""
    if name.startswith("-") or not name.isprintable() or _NOT_IN_NAMES.intersection(name):
        raise HostUnreachable(
            name,
            f"{name!r} is not a valid host name for ssh; set one in ignite-tf.toml: [hosts.NAME] ssh",
        )


def _ask_ssh(program: str, arguments: tuple[str, ...]) -> Answer:
    done = subprocess.run(
        [program, "-G", "-T", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_ASK_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(os.fsdecode(done.stderr).strip().replace("\r", "") or f"exit code {done.returncode}")
    answer: dict[str, list[str]] = {}
    for line in os.fsdecode(done.stdout).splitlines():
        keyword, _, value = line.partition(" ")
        answer.setdefault(keyword.lower(), []).append(value)
    return answer


@functools.cache
def _defaults(program: str) -> Answer:
    """Return the settings of `ssh` without any configuration."""
    return _ask_ssh(program, ("-F", "none", "localhost"))


def _ask_asyncssh(hop: Hop) -> Answer:
    import asyncssh

    options = hop.options
    files = [str(Path("~/.ssh/config").expanduser()), "/etc/ssh/ssh_config"]
    if options.config_file:
        files = [] if options.config_file == "none" else [str(Path(options.config_file).expanduser())]
    asked = {"username": options.user, "port": options.port, "tunnel": options.via}
    base = asyncssh.SSHClientConnectionOptions(
        config=[path for path in files if options.config_file or os.access(path, os.R_OK)],
        host=hop.name.rpartition("@")[2],
        client_keys=None,
        **{name: value for name, value in asked.items() if value is not None},
    )
    answer = {"hostname": [base.host], "port": [str(base.port)], "user": [base.username]}
    for keyword in _ASYNCSSH_KNOWS:
        value: Any = base.config.get(keyword)
        if isinstance(value, list | tuple):
            answer[keyword.lower()] = [str(each) for each in value]
        elif value is not None:
            answer[keyword.lower()] = [{True: "yes", False: "no"}.get(value, str(value))]
    if options.known_hosts:
        answer["userknownhostsfile"] = [options.known_hosts]
    if options.via:
        answer["proxyjump"] = [options.via]
    defaults = {
        "userknownhostsfile": ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"],
        "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"],
        "identityfile": [f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519")],
    }
    return {**defaults, **answer}


def _one(answer: Answer, keyword: str, default: str) -> str:
    """Return the first value of a keyword, or the default."""
    values = answer.get(keyword)
    return values[0] if values else default


def _settings(hop: Hop, answer: Answer, defaults: Answer) -> Settings:
    import asyncssh

    host, port, user = answer["hostname"][0], int(answer["port"][0]), answer["user"][0]
    alias = _one(answer, "hostkeyalias", "")
    tokens = _tokens(hop, host, str(port), user, alias)
    jump = _one(answer, "proxyjump", "none")
    before = None if jump == "none" else jump_hop(hop.options, jump)
    proxy = _one(answer, "proxycommand", "none")
    lines = [
        f"{keyword} {value}\n"
        for keyword in _PASSED_ON
        for value in answer.get(keyword.lower(), ())
        if answer.get(keyword.lower()) != defaults.get(keyword.lower())
    ]
    if answer.get("setenv"):
        lines.append(f"SetEnv {shlex.join(answer['setenv'])}\n")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ssh_config")
        file.write_text("".join(lines), encoding="utf-8")
        base = asyncssh.SSHClientConnectionOptions(
            config=[str(file)],
            host=host,
            port=port,
            username=user,
            client_keys=None,
            agent_forwarding=False,
            command=None,
            public_key_auth=_one(answer, "pubkeyauthentication", "yes") not in ("no", "false"),
            gss_auth=_one(answer, "gssapiauthentication", "no") == "yes",
            gss_delegate_creds=_one(answer, "gssapidelegatecredentials", "no") == "yes",
            gss_kex=_one(answer, "gssapikeyexchange", "no") == "yes",
            proxy_command=None if proxy == "none" else _shell(_expanded(proxy, tokens, with_variables=False)),
        )
    return Settings(
        host=host,
        port=port,
        user=user,
        known_name=alias or host,
        known_port=None if alias or port == SSH_PORT else port,
        known_hosts=tuple(
            _path(name, tokens)
            for keyword in ("userknownhostsfile", "globalknownhostsfile")
            for text in answer.get(keyword, ())
            for name in _file_names(text)
        ),
        key_files=_existing(answer.get("identityfile", ()), tokens),
        certificates=_existing(answer.get("certificatefile", ()), tokens),
        agent=_agent(_one(answer, "identityagent", "SSH_AUTH_SOCK"), tokens),
        only_key_files=_one(answer, "identitiesonly", "no") == "yes",
        # A ProxyJump under `Host *` also applies to the jump host itself.
        jump=None if before is None or before.name == hop.name else before,
        base=base,
    )


def _tokens(hop: Hop, host: str, port: str, user: str, alias: str) -> dict[str, str]:
    """Return the values of `%` tokens (TOKENS in the manual of ssh_config); %C and %j are not supported."""
    here = socket.gethostname()
    name, home, number = _account()
    original = hop.name.rpartition("@")[2]
    names = {"h": host, "n": original, "k": alias or original, "l": here, "L": here.partition(".")[0]}
    return {**names, "p": port, "r": user, "u": name, "d": home, "i": number, "%": "%"}


def _account() -> tuple[str, str, str]:
    """Return the name, home and uid of this account. OpenSSH's `~` is that home, whatever $HOME says."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):  # Windows; an account without a name
        import getpass

        return getpass.getuser(), str(Path.home()), "0"
    return entry.pw_name, entry.pw_dir, str(entry.pw_uid)


def _expanded(text: str, tokens: Mapping[str, str], with_variables: bool = True) -> str:
    def value(found: re.Match[str]) -> str:
        token, variable = found.groups()
        if variable:
            return os.environ[variable] if with_variables else found.group()
        return tokens[token]

    try:
        return _TOKEN.sub(value, text)
    except KeyError as error:
        raise ValueError(f"{text}: {error.args[0]!r} has no value") from None


def _path(name: str, tokens: Mapping[str, str]) -> Path:
    text = _expanded(name, tokens)
    return Path(tokens["d"] + text[1:] if text == "~" or text.startswith("~/") else text).expanduser()


def _existing(names: Sequence[str], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that exist. `ssh` skips the others, too."""
    paths = [_path(name, tokens) for name in names if name != "none"]
    return tuple(path for path in paths if path.is_file())


def _file_names(text: str) -> list[str]:
    """Split a list of files. `ssh -G` does not quote, so words form one name if such a file exists."""
    words, names = text.split(" "), []
    while words:
        sizes = range(len(words), 1, -1)
        size = next((size for size in sizes if Path(" ".join(words[:size])).is_file()), 1)
        names.append(" ".join(words[:size]))
        words = words[size:]
    return [name for name in names if name not in ("", "none")]


def _agent(value: str, tokens: Mapping[str, str]) -> str:
    if value == "none":
        return ""
    if value == "SSH_AUTH_SOCK" or value.startswith("$"):
        return os.environ.get(value.strip("${}"), "")
    return str(_path(value, tokens))


def _shell(command: str) -> tuple[str, ...]:
    """Return the program and arguments that run a ProxyCommand in the user's shell, as `ssh` does."""
    if os.name == "nt":
        return ("cmd", "/c", command)
    return (os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}")


def jump_hop(options: SshOptions, spec: str) -> Hop:
    """Read the value of `-J`. The last host is next to the target; the others lead to it."""
    before, _, last = spec.rpartition(",")
    found = _JUMP.fullmatch(last)
    if found is None:
        raise ConfigError(f"{spec!r} is not a jump host; example: USER@HOST:PORT, or several with commas")
    user, address, name, port = found.groups()
    return Hop(
        address or name, replace(options, user=user, port=int(port) if port else None, via=before or None)
    )


def connect_arguments(settings: Settings, timeouts: LinkTimeouts) -> dict[str, Any]:
    """Return asyncssh's arguments for a connection that never prompts and notices a dead link."""
    fast = {} if settings.base.config.get("Ciphers") else {"encryption_algs": _FAST_CIPHERS}
    return {
        "config": None,  # `base` holds it already
        "options": settings.base,
        "agent_path": "",
        "password_auth": False,
        "kbdint_auth": False,
        "keepalive_interval": timeouts.keepalive_s,
        "keepalive_count_max": _KEEPALIVE_COUNT,
        "connect_timeout": timeouts.connect_s,
        "login_timeout": timeouts.connect_s,
        **fast,
    }


async def load_keys(
    settings: Settings, agent: asyncssh.SSHAgentClient | None
) -> Sequence[asyncssh.SSHKeyPair] | None:
    """Return the keys to offer, in OpenSSH's order, or None if there is no key at all.

    The order is: configured keys that the agent holds, the agent's other keys, key files. A file without a usable key
    is skipped.
    """
    import asyncssh

    loop = asyncio.get_running_loop()
    listed, pairs, certificates = await loop.run_in_executor(None, _read_keys, settings)
    held: dict[bytes, Any] = {}
    if agent is not None:
        held = {pair.key_public_data: pair for pair in await agent.get_keys()}
    first = [held[data] for data in listed if data in held]
    others = [] if settings.only_key_files else [held[data] for data in held if data not in listed]
    files = [pair for pair in pairs if pair.key_public_data not in held]
    return asyncssh.load_keypairs([*first, *others, *files], certlist=certificates) or None


def _read_keys(settings: Settings) -> tuple[list[bytes], list[Any], list[Any]]:
    """Read key files; return the public parts of all keys, the private keys, and the certificates."""
    import asyncssh

    listed: list[bytes] = []
    pairs: list[Any] = []
    for path in settings.key_files:
        for name in (path, path.with_name(f"{path.name}.pub")):
            try:
                listed.append(asyncssh.read_public_key(name).public_data)
            except (asyncssh.KeyImportError, OSError):
                continue
        if _is_open_to_others(path):
            continue
        try:
            read = asyncssh.load_keypairs(str(path), ignore_encrypted=True)
        except (asyncssh.KeyImportError, OSError):
            continue
        pairs += read
        listed += [pair.key_public_data for pair in read]
    certificates = [asyncssh.read_certificate(path) for path in settings.certificates]
    return list(dict.fromkeys(listed)), pairs, certificates


def _is_open_to_others(path: Path) -> bool:
    """Return whether a file of this account is accessible to others. `ssh` does not use such a key."""
    status = path.stat()
    return hasattr(os, "getuid") and status.st_uid == os.getuid() and bool(status.st_mode & 0o077)


def key_fault(path: Path) -> str:
    """Return why the private key in a file is not used, or "" if it is used."""
    import asyncssh

    try:
        if _is_open_to_others(path):
            return f"other users can read it; chmod 600 {path}"
        asyncssh.read_private_key(path)
    except (asyncssh.KeyImportError, OSError) as error:
        if str(error).startswith("Passphrase"):
            return f"it is protected by a passphrase and no agent holds it: ssh-add {path}"
        return str(error)
    return ""


def stamp(paths: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of files, as a cache key for what was read from them."""
    found = [(path, path.stat()) for path in paths if path.is_file()]
    return tuple((str(path), status.st_size, status.st_mtime_ns) for path, status in found)


def read_known_hosts(paths: Sequence[Path]) -> asyncssh.SSHKnownHosts:
    """Read host keys from those of the files that exist."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]
    return known_hosts_of("\n".join(texts))


def known_hosts_of(text: str) -> asyncssh.SSHKnownHosts:
    """Parse a known-hosts file. Damaged lines are skipped, as `ssh` does."""
    import asyncssh

    known = asyncssh.SSHKnownHosts()
    for line in text.splitlines():
        try:
            known.load(line)
        except ValueError:
            continue
    return known


NO_KEYS: tuple[tuple[()], ...] = ((),) * 7
"""asyncssh's `known_hosts` that trusts no key."""


def known_keys(known: asyncssh.SSHKnownHosts, settings: Settings) -> Any:
    """Return the trusted keys of a host, in the form of asyncssh's `known_hosts`.

    On its own, asyncssh would also trust the keys of the host's address; `ssh` does not.
    """
    return known.match(settings.known_name, "", settings.known_port)
