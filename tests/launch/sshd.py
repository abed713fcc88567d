"""A real OpenSSH server on a free port of 127.0.1.1, with its own keys and files; works without root."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import psutil

from ignite_tf_magic.launch.ssh import SshOptions
from tests.waiting import until

ADDRESS = "127.0.1.1"


def find_sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """One server. `options` let our transport connect under the name "box"."""

    def __init__(
        self, folder: Path, *, address: str = ADDRESS, extra: str = "", env: dict[str, str] | None = None
    ):
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.address = address
        with socket.socket() as probe:
            probe.bind((address, 0))
            self.port: int = probe.getsockname()[1]
        self.host_key = self.make_key("host_key")
        self.user_key = self.make_key("user_key")
        self.known_hosts = folder / "known_hosts"
        self.know(self.host_key)
        self.authorized_keys = folder / "authorized_keys"
        shutil.copy(self.user_key.with_suffix(".pub"), self.authorized_keys)
        self.authorized_keys.chmod(0o600)
        self.ssh_config = folder / "ssh_config"
        self.ssh_config.write_text(
            f"Host box\n  HostName {address}\n  Port {self.port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {self.user_key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
            "  IdentityAgent none\n"
        )
        self.options = SshOptions(config_file=str(self.ssh_config))
        variables = "".join(f"SetEnv {name}={value}\n" for name, value in (env or {}).items())
        self.sshd_config = folder / "sshd_config"
        self.sshd_config.write_text(
            f"ListenAddress {address}:{self.port}\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {self.authorized_keys}\nPidFile {folder}/sshd.pid\nStrictModes no\n"
            f"UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
            f"AllowTcpForwarding yes\nLogLevel VERBOSE\n{variables}{extra}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def make_key(self, name: str, passphrase: str = "") -> Path:
        path = self.folder / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return path

    def know(self, key: Path) -> None:
        public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        self.known_hosts.write_text(f"# keys\n[{self.address}]:{self.port} {public}\n")

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def start(self) -> Sshd:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        sshd = find_sshd()
        assert sshd is not None
        self.process = subprocess.Popen(
            [sshd, "-D", "-f", self.sshd_config, "-E", self.folder / "sshd.log"], stdin=subprocess.DEVNULL
        )
        until(self._answers, what=lambda: f"sshd to listen: {self.log}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
            return True
        return False

    def sessions(self) -> list[psutil.Process]:
        """The sshd processes that serve connections, oldest first."""
        if self.process is None:
            return []
        found, children = [], []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has just ended
                if process.name().startswith("sshd"):
                    found.append(process)
        return found

    def kill_sessions(self) -> None:
        """Break every connection, as a crash would. Processes started over them survive."""
        for process in self.sessions():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.kill_sessions()
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Sshd:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()
