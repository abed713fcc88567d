"""A test bed: a few real hosts on one machine, each with an sshd, an Ignite node, a disk, and faults.

    with Bed.up(root_dir=tmp_path / "bed") as bed:
        bed.hosts[0].cable_out()

With root privileges, a host is a set of namespaces (network, processes, mounts, name). Otherwise it is an sshd on a
loopback address, which cannot simulate faults of the link, power and disk. A bed outlives the process that made it:
any process can open it with `Bed.at(directory)` or remove it completely with `tear_down(directory)`. Linux only.
Each method blocks until its effect is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ignite_tf_magic.settings.options import ConnectOptions
from tests.bed import bed_ignite
from tests.bed.bed_host import Host, HostProcess
from tests.bed.bed_inside import BED_FILE, STOCK_PATH, descendants
from tests.bed.bed_system import (
    INSIDE,
    PATIENCE_S,
    BedError,
    BedKind,
    claim_network,
    find_programs,
    find_sshd,
    ip,
    is_running,
    kill_all,
    make_keys,
    wait_for,
    with_field,
    write_private,
)

__all__ = ["Bed", "BedError", "BedKind", "Host", "HostProcess", "tear_down"]

_REPOSITORY = Path(__file__).resolve().parents[2]
_PROGRAM = [sys.executable, "-I", "-S", str(INSIDE)]


class Bed:
    """Hosts on one machine. Leaving the context manager ends them."""

    def __init__(self, directory: Path, facts: dict[str, Any]) -> None:
        self.directory = directory
        self._facts = facts

    @classmethod
    def up(
        cls,
        num_hosts: int = 3,
        *,
        ignite: bool = True,
        root_dir: Path | None = None,
        kind: BedKind | None = None,
        restart_node: bool = False,
        failure_detection_s: float = 8.0,
        segmentation: str = "STOP",
        disk_mb: int = 96,
        shared_home: bool = False,
    ) -> Bed:
        """Make a bed in a directory and return once all hosts are usable. Replaces any bed in that directory.

        Args:
            root_dir: The directory, whose content is kept afterwards, for the logs. None: a new one, which is removed.
            kind: None means the best kind available to this user.
            restart_node: Restart nodes that exit by themselves, as a service manager does.
            shared_home: All hosts share the home of the first one, as over NFS. Namespaces only.
            failure_detection_s: Nodes treat a node as lost if it does not answer for this many seconds.
        """
        directory = Path(root_dir or tempfile.mkdtemp(prefix="ignite-tf-bed-")).resolve()
        tear_down(directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(directory / "hosts", ignore_errors=True)  # logs of an earlier bed
        kind = kind or BedKind.best()
        installation = bed_ignite.installation() if ignite else None
        visible = {
            sys.prefix,
            os.path.realpath(sys.prefix),
            sys.base_prefix,
            os.path.realpath(sys.base_prefix),
        }
        visible |= {str(_REPOSITORY), *map(str, bed_ignite.read_paths(installation) if installation else ())}
        facts = {
            "namespaces": kind is BedKind.NAMESPACES,
            "visible": sorted(visible),
            "uid": os.geteuid(),
            "disk_mb": disk_mb,
            "shared_home": shared_home,
            "restart_node": restart_node,
            "failure_detection_s": failure_detection_s,
            "segmentation": segmentation,
            "java": bed_ignite.command(installation, Path("CONFIG"))[:-1] if installation else None,
            "keep_directory": root_dir is not None,
            "hosts": {},
            **claim_network(kind),
        }
        bed = cls(directory, facts)
        try:
            bed._make(num_hosts)
        except BaseException:
            bed.down()
            raise
        return bed

    @classmethod
    def at(cls, directory: Path) -> Bed:
        """Return the bed in a directory, even if another process made it."""
        directory = directory.resolve()
        try:
            return cls(directory, json.loads((directory / BED_FILE).read_text()))
        except FileNotFoundError:
            raise BedError(f"there is no bed in {directory}") from None

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def down(self) -> None:
        tear_down(self.directory)

    @property
    def kind(self) -> BedKind:
        return BedKind.NAMESPACES if self._facts["namespaces"] else BedKind.LOOPBACK

    @property
    def has_ignite(self) -> bool:
        return self._facts["java"] is not None

    @property
    def restart_node(self) -> bool:
        return bool(self._facts["restart_node"])

    @property
    def gateway(self) -> str:
        """The address of the test process, as the hosts see it."""
        return str(self._facts["gateway"])

    @property
    def user(self) -> str:
        return pwd.getpwuid(self._facts["uid"]).pw_name

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(
            Host(self, name, host["address"], host["ssh_port"]) for name, host in self._facts["hosts"].items()
        )

    @property
    def has_shared_home(self) -> bool:
        return bool(self._facts["shared_home"])

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def identity(self) -> Path:
        return self.directory / "identity"

    @property
    def connect_options(self) -> ConnectOptions:
        return ConnectOptions(endpoints=tuple(host.endpoint for host in self.hosts))

    @cached_property
    def switch_pid(self) -> int:
        pid = next(find_programs("switch", str(self.directory)), None)
        if pid is None:
            raise BedError(f"the bed in {self.directory} is down")
        return pid

    def ssh(self, host: Host, *command: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command on a host with the system's ssh."""
        argv = ["ssh", "-F", str(self.ssh_config), host.ssh_name, *command]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )

    def add_host(self, *, wait: bool = True) -> Host:
        """Add a host, whose node joins the cluster."""
        host = self._plan_host()
        self._write_shared_files()
        self._lay_out(host)
        self.boot([host.name])
        host.await_sshd()
        if wait and self.has_ignite:
            host.await_node(2)
        return host

    # Making

    def _make(self, num_hosts: int) -> None:
        for _ in range(num_hosts):
            self._plan_host()
        make_keys([self.identity, *(host.directory / "host_key" for host in self.hosts)])
        self._write_shared_files()
        for host in self.hosts:
            self._lay_out(host)
        if self.kind is BedKind.NAMESPACES:
            self._start_switch()
        self.boot([host.name for host in self.hosts])
        for host in self.hosts:
            host.await_sshd()
        for host in self.hosts if self.has_ignite else ():
            host.await_node(num_hosts)

    def _plan_host(self) -> Host:
        number = len(self._facts["hosts"]) + 1
        prefix = self._facts["prefix"]
        host = {"address": f"{prefix}.{number}", "ssh_port": self._facts["ssh_port"]}
        if self.kind is BedKind.NAMESPACES:
            first, second = (int(part) for part in prefix.split(".")[1:])
            host["mac"] = f"02:be:{first:02x}:{second:02x}:00:{number:02x}"
        self._facts["hosts"][f"bed{number}"] = host
        write_private(self.directory / BED_FILE, json.dumps(self._facts, indent=1))
        return self.hosts[-1]

    def _write_shared_files(self) -> None:
        """Write the client's SSH files, and each host's /etc/hosts in place, as it is bind-mounted."""
        make_keys([host.directory / "host_key" for host in self.hosts])
        entries, known = [], []
        for host in self.hosts:
            entries.append(_SSH_ENTRY.format(host=host, bed=self))
            key = " ".join((host.directory / "host_key.pub").read_text().split()[:2])
            place = host.address if host.ssh_port == 22 else f"[{host.address}]:{host.ssh_port}"
            known.append(f"{place} {key}\n")
        write_private(self.ssh_config, "".join(entries))
        write_private(self.known_hosts, "".join(known))
        names = [
            "127.0.0.1 localhost",
            f"{self.gateway} bed0",
            *(f"{host.address} {host.name}" for host in self.hosts),
        ]
        for host in self.hosts:
            (host.directory / "etc-hosts").write_text("\n".join([*names, ""]))

    def _lay_out(self, host: Host) -> None:
        directory = host.directory
        (directory / "home").mkdir(mode=0o700, exist_ok=True)
        (directory / "work").mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(self.identity.with_suffix(".pub"), directory / "authorized_keys")
        config = _SSHD_CONFIG.format(host=host)
        if self.kind is BedKind.LOOPBACK:
            config += _SSHD_OWN_HOME.format(host=host)
            if os.geteuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        write_private(directory / "sshd_config", config)
        argv = [find_sshd(), "-D", "-e", "-f", str(directory / "sshd_config")]
        write_private(directory / "sshd.json", json.dumps({"argv": argv, "env": {"PATH": STOCK_PATH}}))
        (directory / "passwd").write_text(with_field(Path("/etc/passwd"), self.user, 5, host.home))
        if os.geteuid() == 0:  # sshd rejects a locked account even with a key
            write_private(directory / "shadow", with_field(Path("/etc/shadow"), self.user, 1, "*"))
        (directory / "resolv.conf").touch()
        if self.has_ignite:
            self._lay_out_node(host)

    def _lay_out_node(self, host: Host) -> None:
        config = host.directory / "ignite.xml"
        xml = bed_ignite.node_xml(
            host.name,
            host.address,
            [each.address for each in self.hosts],
            host.directory / "work",
            self._facts["failure_detection_s"],
            self._facts["segmentation"],
        )
        write_private(config, xml)
        command = {"argv": [*self._facts["java"], str(config)], "env": self.environment(host)}
        write_private(host.directory / "node.json", json.dumps(command))

    def environment(self, host: Host) -> dict[str, str]:
        return {
            "HOME": host.home,
            "USER": self.user,
            "LOGNAME": self.user,
            "PATH": STOCK_PATH,
            "LANG": "C.UTF-8",
        }

    def _start_switch(self) -> None:
        started = subprocess.run(
            [*_PROGRAM, "start-switch", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if started.returncode != 0 or not started.stdout.strip():
            raise BedError(f"the bed's switch did not start:\n{started.stderr}")
        pid, device = int(started.stdout), self._facts["device"]
        ip(f"link add name {device} type veth peer name uplink netns {pid}")
        inside = (
            "link add name bridge type bridge",
            "link set uplink master bridge up",
            "link set bridge up",
        )
        ip("\n".join(inside), pid)
        ip(f"address add {self.gateway}/24 dev {device}\nlink set {device} up")

    def boot(self, names: Sequence[str]) -> None:
        hosts = [host for host in self.hosts if host.name in names]
        for host in hosts:
            (host.directory / "status.json").unlink(missing_ok=True)
            host.want(sshd=True, node=self.has_ignite)
        argv = [*_PROGRAM, "boot", str(self.directory), *names]
        if self.kind is BedKind.NAMESPACES:
            argv = ["nsenter", f"--target={self.switch_pid}", "--mount", "--net", "--pid", "--", *argv]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
        if done.returncode != 0 or done.stderr:
            raise BedError(f"{', '.join(names)} did not boot:\n{done.stderr}")


_SSH_ENTRY = """Host {host.name} {host.address}
    HostName {host.address}
    Port {host.ssh_port}
    User {bed.user}
    IdentityFile "{bed.identity}"
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile "{bed.known_hosts}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    BatchMode yes
"""

# All else keeps sshd's defaults: MaxSessions, MaxStartups, AcceptEnv.
_SSHD_CONFIG = """ListenAddress {host.address}
Port {host.ssh_port}
HostKey "{host.directory}/host_key"
AuthorizedKeysFile "{host.directory}/authorized_keys"
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
PrintMotd no
Subsystem sftp internal-sftp
"""

_SSHD_OWN_HOME = """PermitUserRC no
SetEnv "HOME={host.home}"
ForceCommand cd "$HOME" && exec "${{SHELL:-/bin/sh}}" -c "${{SSH_ORIGINAL_COMMAND:-exec $SHELL -l}}"
"""


def tear_down(directory: Path) -> None:
    """End the bed in a directory, whoever made it and however that process ended. Do nothing if there is none."""
    directory = directory.resolve()
    try:
        facts = json.loads((directory / BED_FILE).read_text())
    except FileNotFoundError:
        return
    if facts["namespaces"]:
        pids = list(find_programs(None, str(directory)))
        wait_for(lambda: not kill_all(pids), "the bed's processes to end")
        present = Path("/sys/class/net", facts["device"])
        if present.exists():
            subprocess.run(
                ["ip", "link", "delete", facts["device"]], capture_output=True
            )  # the device may already be gone
        wait_for(lambda: not present.exists(), f"{facts['device']} to go")
    else:
        wait_for(lambda: not kill_all(_loopback_processes(str(directory))), "the bed's processes to end")
    (directory / BED_FILE).unlink()
    if not facts["keep_directory"]:
        shutil.rmtree(directory)


def _loopback_processes(directory: str) -> list[int]:
    """Return the processes below the inits, or the inits once nothing is below. An orphan could not be identified."""
    inits = list(find_programs(None, directory))
    below = [pid for init in inits for pid in descendants(init) if is_running(pid)]
    return below or inits


def _describe(bed: Bed) -> str:
    lines = [f"test bed: {bed.kind.value}; log in with: ssh -F {bed.ssh_config} {bed.hosts[0].ssh_name}"]
    for host in bed.hosts:
        power = f"pid {host.pid}" if host.pid else "no power"
        services = (
            ", ".join(f"{name} {pid}" for name, pid in host.status()["pids"].items()) if host.pid else ""
        )
        lines.append(f"{host.name}  {host.address}:{host.ssh_port}  {power}  {services}")
    if bed.has_ignite:
        endpoints = ",".join(map(str, bed.connect_options.endpoints))
        lines.append(f"IGNITE_TF_CLUSTER={endpoints}")
    return "\n".join(lines)


def main() -> None:
    """Run the command behind bed.sh."""
    parser = argparse.ArgumentParser(prog="bed.sh")
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir(), f"ignite-tf-bed-{os.geteuid()}")
    )
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--no-ignite", action="store_true")
    parser.add_argument("--kind", choices=[kind.name.lower() for kind in BedKind])
    given = parser.parse_args()
    try:
        if given.command == "up":
            kind = BedKind[given.kind.upper()] if given.kind else None
            print(
                _describe(
                    Bed.up(given.hosts, ignite=not given.no_ignite, root_dir=given.directory, kind=kind)
                )
            )
        elif given.command == "status":
            print(_describe(Bed.at(given.directory)))
        else:
            tear_down(given.directory)
            shutil.rmtree(given.directory, ignore_errors=True)
    except BedError as error:
        raise SystemExit(f"bed.sh: {error}") from error


if __name__ == "__main__":
    main()
