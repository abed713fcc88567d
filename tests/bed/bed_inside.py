"""What runs inside a test bed: its switch, and the init of each host. Standard library only; started by bed.py.

    switch DIR          PID 1 of the whole bed: network, mounts and all processes end with it
    boot DIR NAME...    boots these hosts inside the switch's namespaces, and exits
    init DIR NAME       PID 1 of a host: starts and kills the services that HOST/wanted.json names

A host's directory is DIR/hosts/NAME. The test writes its `wanted.json`; the init writes its `status.json`.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
from pathlib import Path

BED_FILE = "bed.json"
STOCK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_CHILD_SUBREAPER = 36
# Each host has its own, empty copies of these. Paths in them that the tests' Python needs are bind-mounted again.
_OWN_DIRECTORIES = {
    "/tmp": 1777,
    "/var/tmp": 1777,
    "/dev/shm": 1777,
    "/run": 755,
    "/home": 755,
    "/root": 700,
}
_SIGNALS = {signal.SIGCHLD, signal.SIGUSR1}
_RESTART_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = os.fsencode(options) or None
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {source} on {target}")


def _write_whole(path: Path, value: object) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def start_switch(directory: str) -> None:
    """Start the switch from the API's child process. Prints its pid in this namespace once it can be entered."""
    ready_read, ready_write = os.pipe()
    _unshare(_NEWPID | _NEWNET | _NEWNS)
    pid = os.fork()
    if pid:
        os.close(ready_write)
        if os.read(ready_read, 1):
            print(pid, flush=True)
        return
    os.setsid()
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.set_inheritable(ready_write, True)
    _exec_self("switch", directory, str(ready_write))


def _exec_self(*arguments: str) -> None:
    os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, *arguments], {"PATH": STOCK_PATH})


def switch(ready: int) -> None:
    """Reap ended processes forever. SIGKILL cuts the power."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.write(ready, b"1")
    os.close(ready)
    while True:
        signal.sigwaitinfo(_SIGNALS)
        _reap()


def _reap() -> list[tuple[int, int]]:
    ended = []
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(code)))


def boot(directory: str, names: list[str]) -> None:
    """Start the inits of these hosts. Network setup comes first, the init last."""
    bed = json.loads((Path(directory) / BED_FILE).read_text())
    for name in names:
        home = Path(directory) / "hosts" / name / "home"
        if not bed["namespaces"]:
            _fork(lambda name=name: _exec_self("init", directory, name))
            continue
        if not os.path.ismount(home):  # a disk survives a power cut
            _mount("bed-home", str(home), "tmpfs", 0, f"size={bed['disk_mb']}m,mode=700,uid={bed['uid']}")
        os.waitpid(_fork(lambda name=name: _power_on(bed, directory, name)), 0)


def _fork(body) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        body()
        os._exit(0)
    finally:  # only reached after an exception
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _power_on(bed: dict, directory: str, name: str) -> None:
    host = bed["hosts"][name]
    _unshare(_NEWNET)
    # The switch is PID 1 here. A constant MAC address keeps the neighbours' ARP tables valid.
    _ip(f"link add name eth0 address {host['mac']} type veth peer name {name} netns 1")
    _ip(
        f"link set lo up\naddress add {host['address']}/24 dev eth0\nlink set eth0 up\n"
        f"route add default via {bed['gateway']}"
    )
    subprocess.run(["nsenter", "-t1", "-n", "ip", "link", "set", name, "master", "bridge", "up"], check=True)
    ipv6 = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    if ipv6.exists():
        ipv6.write_text("1")
    _unshare(_NEWPID | _NEWNS | _NEWUTS | _NEWIPC)
    if os.fork() == 0:
        _furnish(bed, Path(directory) / "hosts" / name, name)
        _exec_self("init", directory, name)


def _ip(commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input=commands.encode(), check=True)


def _furnish(bed: dict, host: Path, name: str) -> None:
    """Build the file system that this host sees: its own disk, and the rest of the machine read-only."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    socket.sethostname(name)
    home = f"/home/{pwd.getpwuid(bed['uid']).pw_name}"
    sources = {path: path for path in [*bed["visible"], str(host)]}
    sources[home] = str((host.parent / next(iter(bed["hosts"])) if bed["shared_home"] else host) / "home")
    opened = {target: os.open(source, os.O_PATH) for target, source in sources.items()}
    for path, mode in _OWN_DIRECTORIES.items():
        _mount("bed", path, "tmpfs", 0, f"mode={mode}")
    for target, source in sorted(opened.items()):
        if _is_masked(target):
            Path(target).mkdir(parents=True, exist_ok=True)
        elif target != str(host):
            continue
        _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND)
    _mount("proc", "/proc", "proc")
    _make_read_only({*_OWN_DIRECTORIES, str(host), home})
    (host / "boot_id").write_text(f"{uuid.uuid4()}\n")
    for file, path in {
        "passwd": "/etc/passwd",
        "shadow": "/etc/shadow",
        "etc-hosts": "/etc/hosts",
        "resolv.conf": "/etc/resolv.conf",
        "boot_id": "/proc/sys/kernel/random/boot_id",
    }.items():
        if Path(path).exists():
            _mount(str(host / file), os.path.realpath(path), None, _MS_BIND)
    Path("/run/sshd").mkdir(mode=0o755)
    os.chdir(host)


def _is_masked(path: str) -> bool:
    return any(path.startswith(f"{mask}/") for mask in _OWN_DIRECTORIES)


def _make_read_only(writable: set[str]) -> None:
    """Make other mounts read-only: all hosts would see a file written outside a host's own disk."""
    system = ("/proc", "/dev", "/sys")
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in points:
        path = point.encode().decode("unicode_escape")
        if path in writable or any(path == top or path.startswith(f"{top}/") for top in system):
            continue
        try:
            _mount("none", path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
        except OSError:  # hidden under another mount
            continue


class Services:
    """The services of a host. `wanted.json` lists them: {"sshd": 3, ...}, with a number for each start order.

    A service is started once per number. A service that exits stays down unless "restart" lists it.
    """

    def __init__(self, host: Path) -> None:
        self._host = host
        self._pids: dict[str, int] = {}
        self._logs: dict[str, str] = {}
        self._started: dict[str, int] = {}
        self._ended: dict[str, list] = {}
        self._told: dict | None = None

    def look(self) -> None:
        for pid, code in _reap():
            for service in [name for name, running in self._pids.items() if running == pid]:
                del self._pids[service]
                self._ended.setdefault(service, []).append([time.time(), code])
        wanted = json.loads((self._host / "wanted.json").read_text())
        for service in list(self._pids):
            if service not in wanted["services"]:
                self._kill(service)
        for service, number in wanted["services"].items():
            if service not in self._pids and self._is_due(service, number, wanted["restart"]):
                self._started[service] = number
                self._start(service)
        self._tell(wanted["version"])

    def _is_due(self, service: str, number: int, restart: list) -> bool:
        if number > self._started.get(service, -1):
            return True
        ended = self._ended.get(service)
        return service in restart and bool(ended) and time.time() - ended[-1][0] >= _RESTART_S

    def _start(self, service: str) -> None:
        command = json.loads((self._host / f"{service}.json").read_text())
        log = self._host / f"{service}-{sum(1 for _ in self._host.glob(f'{service}-*.log'))}.log"
        self._logs[service] = log.name
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._pids[service] = os.posix_spawn(
            command["argv"][0],
            command["argv"],
            command["env"],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
        )

    def _kill(self, service: str) -> None:
        """Kill a service at once, with sshd also its sessions. Commands of the sessions survive, as on any host."""
        pids = {self._pids.pop(service)}
        if service == "sshd":
            pids |= {pid for pid, name in descendants(os.getpid()).items() if name.startswith("sshd")}
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while any(_state(pid) not in "ZX" for pid in pids):
            time.sleep(0.005)

    def _tell(self, version: int) -> None:
        status = {"version": version, "pids": self._pids, "logs": self._logs, "ended": self._ended}
        if status != self._told:
            _write_whole(self._host / "status.json", status)
            self._told = json.loads(json.dumps(status))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def descendants(ancestor: int, proc: str = "/proc") -> dict[int, str]:
    """Return the names of the processes below one, by pid. 0 means all processes of a namespace."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path(proc).glob("[0-9]*"):
        try:
            head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        names[int(entry.name)] = head.partition("(")[2]
        parents[int(entry.name)] = int(tail.split()[1])
    found: dict[int, str] = {}
    wave = {ancestor}
    while wave:
        wave = {pid for pid, parent in parents.items() if parent in wave and pid not in found}
        found.update((pid, names[pid]) for pid in wave)
    return found


def init(directory: str, name: str) -> None:
    """Manage a host's services forever. The loop wakes without a signal only for services due for a restart."""
    host = Path(directory) / "hosts" / name
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")  # PID 1 is a subreaper anyway
    os.chdir(host)
    log = os.open(host / "init.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, fd)
    services = Services(host)
    while True:
        services.look()
        signal.sigtimedwait(_SIGNALS, 0.5)


if __name__ == "__main__":
    _, program, *rest = sys.argv
    if program == "start-switch":
        start_switch(rest[0])
    elif program == "switch":
        switch(int(rest[1]))
    elif program == "boot":
        boot(rest[0], rest[1:])
    elif program == "init":
        init(rest[0], rest[1])
    else:
        raise SystemExit(f"no such program: {program}")
