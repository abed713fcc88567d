"""One host of a bed: its properties, and the faults to inject."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ignite_tf_magic.settings.options import Endpoint
from tests.bed import bed_ignite
from tests.bed.bed_inside import descendants
from tests.bed.bed_system import (
    NAMESPACES,
    PATIENCE_S,
    BedError,
    BedKind,
    find_programs,
    ip,
    is_running,
    tail,
    wait_for,
    write_private,
)

if TYPE_CHECKING:
    from tests.bed.bed import Bed

_NODE_PATIENCE_S = 300.0
_JOB_MARKER = b"IGNITE_TF_JOB="


class HostProcess(NamedTuple):
    """A process inside a host.

    Attributes:
        pid: The process id inside the host.
        marker: The marker of its job (IGNITE_TF_JOB in its environment), or None without a job.
    """

    pid: int
    argv: tuple[str, ...]
    marker: str | None


@dataclass(frozen=True)
class Host:
    """One host. Its attributes survive power cuts."""

    bed: Bed = field(repr=False)
    name: str
    address: str
    ssh_port: int

    @property
    def ssh_name(self) -> str:
        return self.name

    @property
    def directory(self) -> Path:
        """The directory of the host's settings and service logs."""
        return self.bed.directory / "hosts" / self.name

    @property
    def disk(self) -> Path:
        """The host's home as the test sees it, even without power."""
        owner = self.bed.hosts[0] if self.bed.has_shared_home else self
        home = owner.directory / "home"
        if self.bed.kind is BedKind.LOOPBACK:
            return home
        return Path(f"/proc/{self.bed.switch_pid}/root{home}")

    @property
    def home(self) -> str:
        """The home directory as the host itself sees it."""
        if self.bed.kind is BedKind.LOOPBACK:
            return str(self.directory / "home")
        return f"/home/{self.bed.user}"

    @property
    def state(self) -> str:
        """This package's state directory on the host, relative to its home."""
        name = socket.gethostname() if self.bed.kind is BedKind.LOOPBACK else self.name
        return f".local/state/ignite_tf_magic/{name.partition('.')[0]}"

    @property
    def python(self) -> str:
        """The interpreter of the tests, with all installed packages."""
        return sys.executable

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address)

    @property
    def pid(self) -> int | None:
        """The pid of the host's init in the test's namespace, or None without power."""
        return next(find_programs("init", str(self.bed.directory), self.name), None)

    @property
    def boot_id(self) -> str:
        return self.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()

    def service_pid(self, service: str) -> int | None:
        """Return the pid of "sshd" or "node" inside the host, or None if it is not running."""
        return self.status()["pids"].get(service)

    def service_log(self, service: str) -> Path:
        """Return the newest log of a service. Each start begins a new log."""
        return self.directory / self.status()["logs"][service]

    # Link

    def cable_out(self) -> None:
        """Remove the carrier: no packets pass, connections get no notice, and the host sees NO-CARRIER."""
        self._needs_namespaces("cable_out")
        ip(f"link set {self.name} down", self.bed.switch_pid)

    def cable_in(self) -> None:
        self._needs_namespaces("cable_in")
        ip(f"link set {self.name} up", self.bed.switch_pid)

    # Power

    def power_off(self) -> None:
        """End everything at once, without a last packet. The disk keeps its content."""
        self._needs_namespaces("power_off")
        pid = self.pid
        if pid is None:
            return
        self.cable_out()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_running(pid), f"{self.name} to end")
        ip(f"link delete {self.name}", self.bed.switch_pid)

    def power_on(self, *, wait: bool = True) -> None:
        """Boot with a new boot id, sshd and the node. With `wait`, block until the node has joined the others."""
        self._needs_namespaces("power_on")
        if self.pid is None:
            self.bed.boot([self.name])
            self.await_sshd()
            if wait and self.bed.has_ignite:
                self.await_node()

    # Services

    def kill_sshd(self) -> None:
        """Send SIGKILL to the listener and to all sessions."""
        self._order(sshd=False)

    def start_sshd(self) -> None:
        self._order(sshd=True)
        self.await_sshd()

    def kill_node(self) -> None:
        """Send SIGKILL to the node. It stays down until `start_node`, even in a bed that restarts nodes."""
        self._order(node=False)

    def start_node(self, *, wait: bool = True) -> None:
        """Start the node unless it is running. With `wait`, block until it has joined the others."""
        if not self.bed.has_ignite:
            raise BedError("this bed was made without Ignite")
        self._order(node=True)
        if wait:
            self.await_node()

    def await_node(self, num_nodes: int = 1) -> None:
        """Block until the node is up and has seen at least `num_nodes` nodes, including itself."""
        self._await("node", lambda log: bed_ignite.has_joined(log, num_nodes), _NODE_PATIENCE_S)

    # Disk

    def fill_disk(self) -> None:
        """Fill the home to the last byte."""
        self._needs_namespaces("fill_disk")
        with (self.disk / "ballast").open("ab", buffering=0) as file:
            for block in (b"\0" * (1 << 20), b"\0" * 4096, b"\0"):
                try:
                    while file.write(block):
                        continue
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free_disk(self) -> None:
        self._needs_namespaces("free_disk")
        (self.disk / "ballast").unlink(missing_ok=True)

    # Inside

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the host without sshd, so it works with the cable out.

        On a loopback address the program is a child of the test, so `processes` does not list processes that it leaves.
        """
        env = self.bed.environment(self)
        whole = ["env", "-i", "-C", self.home, *(f"{key}={value}" for key, value in env.items()), *argv]
        if self.bed.kind is BedKind.NAMESPACES:
            whole = [
                "nsenter",
                f"--target={self._living()}",
                *(f"--{name}" for name in NAMESPACES),
                "--",
                *whole,
            ]
        return subprocess.run(whole, capture_output=True, text=True, timeout=timeout_s, **options)

    def processes(self) -> list[HostProcess]:
        """Return the host's processes without those of the bed: its init, sshd with its sessions, and the node."""
        pid = self._living()
        if self.bed.kind is BedKind.LOOPBACK:
            proc, ours, found = "/proc", {pid}, descendants(pid)
        else:
            proc, ours, found = f"/proc/{pid}/root/proc", {1}, descendants(0, f"/proc/{pid}/root/proc")
        ours |= set(self.status()["pids"].values())
        seen = (
            self._process(proc, each)
            for each, name in found.items()
            if each not in ours and not name.startswith("sshd")
        )
        return [process for process in seen if process is not None]

    @staticmethod
    def _process(proc: str, pid: int) -> HostProcess | None:
        try:
            argv = Path(proc, str(pid), "cmdline").read_bytes()
            environment = Path(proc, str(pid), "environ").read_bytes().split(b"\0")
        except (
            OSError
        ):  # Write the client's SSH files, and each host's /etc/hosts in place, as it is bind-mounted.
            return None
        marks = [
            item.removeprefix(_JOB_MARKER).decode() for item in environment if item.startswith(_JOB_MARKER)
        ]
        words = argv.decode(errors="replace").rstrip("\0").split("\0")
        return HostProcess(pid, tuple(words), next(iter(marks), None)) if argv else None

    def _living(self) -> int:
        pid = self.pid
        if pid is None:
            raise BedError(f"{self.name} has no power")
        return pid

    def _needs_namespaces(self, what: str) -> None:
        if self.bed.kind is not BedKind.NAMESPACES:
            raise BedError(f"{what} needs hosts made of {BedKind.NAMESPACES.value}: run as root")

    def status(self) -> dict[str, Any]:
        return json.loads((self.directory / "status.json").read_text())

    def want(self, **services: bool) -> int:
        """Write which services must run. Returns the version of the written file."""
        path, version = self.directory / "wanted.json", time.time_ns()
        wanted = json.loads(path.read_text())["services"] if path.exists() else {}
        for service, starts in services.items():
            wanted.pop(service, None)
            if starts:
                wanted[service] = version
        restart = ["node"] if self.bed.restart_node else []
        write_private(path, json.dumps({"version": version, "services": wanted, "restart": restart}))
        return version

    def _order(self, **services: bool) -> None:
        pid = self._living()
        running = {name for name, starts in services.items() if starts and self.service_pid(name) is not None}
        version = self.want(**{name: starts for name, starts in services.items() if name not in running})
        os.kill(pid, signal.SIGUSR1)
        wait_for(lambda: self.status()["version"] >= version, f"the init of {self.name}")

    def await_sshd(self) -> None:
        """Block until the host has booted and its sshd listens."""
        status = self.directory / "status.json"
        wait_for(status.exists, f"{self.name} to boot; see {self.directory / 'init.log'}")
        self._await("sshd", lambda log: "Server listening" in log, PATIENCE_S)

    def _await(self, service: str, is_ready: Callable[[str], bool], timeout_s: float) -> None:
        restarts = service == "node" and self.bed.restart_node

        def look() -> bool:
            log = self.service_log(service)
            if self.service_pid(service) is None and not restarts:
                raise BedError(f"the {service} of {self.name} ended; the end of {log}:\n{tail(log)}")
            return is_ready(log.read_text(errors="replace"))

        wait_for(look, f"the {service} of {self.name}", timeout_s)
