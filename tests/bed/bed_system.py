"""The bed's use of this machine: namespaces, network devices, processes, keys, and waiting."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from tests.bed.bed_inside import STOCK_PATH
from tests.waiting import PATIENCE_S, until

INSIDE = Path(__file__).with_name("bed_inside.py").resolve()
NAMESPACES = ("mount", "uts", "ipc", "net", "pid")
_DISCOVERY_PORT = 47500


class BedError(Exception):
    """The bed cannot perform an operation; the message says why."""


class BedKind(Enum):
    """The technique that isolates the hosts."""

    NAMESPACES = "network namespaces"
    LOOPBACK = "loopback addresses"

    @classmethod
    def best(cls) -> BedKind:
        """Return the best kind available to this user on this machine."""
        script = "ip link add name b type bridge && ip link add name v type veth peer name w && mount -t tmpfs t /mnt"
        flags = [f"--{name}" for name in NAMESPACES]
        try:
            done = subprocess.run(
                ["unshare", "--fork", *flags, "sh", "-c", script], capture_output=True, timeout=PATIENCE_S
            )
        except FileNotFoundError:
            return cls.LOOPBACK
        return cls.NAMESPACES if os.geteuid() == 0 and done.returncode == 0 else cls.LOOPBACK


def kill_all(pids: Sequence[int]) -> bool:
    """Kill these processes. Returns whether any was still running (a PID 1 ends after all others)."""
    found = [pid for pid in pids if is_running(pid)]
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(found)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def find_programs(program: str | None, directory: str, *rest: str) -> Iterator[int]:
    """Find the bed's own programs by their command lines: the system could reuse a stored pid."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        words = list(map(os.fsdecode, argv[4:]))
        if argv[3:4] != [os.fsencode(INSIDE)] or words[1:2] != [directory]:
            continue
        if program is None or (words[0] == program and words[2 : 2 + len(rest)] == list(rest)):
            yield int(entry.name)


def claim_network(kind: BedKind) -> dict[str, Any]:
    """Choose an unused /24 network. Its numbers also name the test's network device."""
    while True:
        first, second = secrets.token_bytes(2)
        if kind is BedKind.NAMESPACES:
            prefix, device = f"10.{first}.{second}", f"bed-{first:02x}{second:02x}"
            own = {"prefix": prefix, "device": device, "ssh_port": 22, "gateway": f"{prefix}.254"}
            if not _overlaps(ipaddress.ip_network(f"{prefix}.0/24")):
                return own
        elif first > 0:
            prefix, port = f"127.0.{first}", 2200 + second
            if all(_is_free(f"{prefix}.1", each) for each in (port, _DISCOVERY_PORT)):
                return {"prefix": prefix, "ssh_port": port, "gateway": "127.0.0.1"}


def _overlaps(network: ipaddress.IPv4Network) -> bool:
    shown = subprocess.run(
        ["ip", "-4", "-j", "route", "show", "table", "all"], capture_output=True, check=True
    )
    routes = [route["dst"] for route in json.loads(shown.stdout or "[]") if route["dst"] != "default"]
    return any(ipaddress.ip_network(route, strict=False).overlaps(network) for route in routes)


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((address, port))
        except OSError:
            return False
        return True


def ip(commands: str, namespace_of: int | None = None) -> None:
    entered = [] if namespace_of is None else ["nsenter", f"--target={namespace_of}", "--net", "--"]
    done = subprocess.run([*entered, "ip", "-batch", "-"], input=commands, capture_output=True, text=True)
    if done.returncode != 0:
        raise BedError(f"ip {commands!r}: {done.stderr}")


def make_keys(paths: Sequence[Path]) -> None:
    """Create the missing keys in parallel."""
    makers = []
    for path in paths:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
            makers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
    codes = [maker.wait() for maker in makers]
    if any(codes):
        raise BedError("ssh-keygen failed")


def find_sshd() -> str:
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{STOCK_PATH}")
    if found is None:
        raise BedError("no sshd on this machine; install it with: make sshd")
    return found


def with_field(table: Path, user: str, index: int, value: str) -> str:
    lines = [line.split(":") for line in table.read_text().splitlines()]
    for fields in lines:
        if fields[0] == user:
            fields[index] = value
    return "".join(":".join(fields) + "\n" for fields in lines)


def write_private(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.new")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait as `until` does, but raise BedError.

    Raises:
        BedError: The condition did not become true in time.
    """
    try:
        until(condition, timeout_s, what)
    except AssertionError as error:
        raise BedError(str(error)) from None
