"""The bed injects the faults that it documents, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.bed.bed import Bed, BedError, BedKind, Host, tear_down
from tests.bed.bed_system import find_programs
from tests.waiting import until

BED_SH = Path(__file__).with_name("bed.sh")
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"


@pytest.fixture(params=["machines", "loopback"])
def any_bed(request) -> Bed:
    return request.getfixturevalue(request.param)


@contextmanager
def ssh_session(bed: Bed, host: Host, command: str) -> Iterator[subprocess.Popen]:
    argv = ["ssh", "-F", str(bed.ssh_config), host.ssh_name, command]
    with subprocess.Popen(
        argv, bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as session:
        try:
            yield session
        finally:
            session.kill()


def left_on_server(host: Host, words: str = "sleep 3600") -> list[str]:
    """Start a daemon on the host and return its command line as `processes` reports it."""
    started = host.bed.ssh(host, f"IGNITE_TF_JOB=job-1 setsid {words} </dev/null >/dev/null 2>&1 &")
    assert started.returncode == 0, started.stderr
    until(lambda: words in argvs(host), what="the daemon, no longer `setsid` or a shell")
    return argvs(host)


def argvs(host: Host) -> list[str]:
    return [" ".join(process.argv) for process in host.processes()]


def has_carrier(host: Host) -> bool:
    shown = json.loads(host.run(["ip", "-j", "link", "show", "dev", "eth0"]).stdout)
    return "NO-CARRIER" not in shown[0]["flags"]


def is_quiet(link: socket.socket | IO[bytes], for_s: float) -> bool:
    """Return whether the other side neither sends nor closes the connection."""
    return select.select([link], [], [], for_s)[0] == []


# What the hosts are


def test_ssh_reaches_each_host(any_bed):
    for host in any_bed.hosts:
        answer = any_bed.ssh(host, "pwd; echo $HOME; python3 -c 'print(40 + 2)'")
        assert answer.stdout.split() == [host.home, host.home, "42"], answer.stderr
        version = any_bed.ssh(host, host.python, "-c", "'import pytest; print(pytest.__version__)'")
        assert version.stdout.strip() == pytest.__version__


def test_each_host_has_a_home_of_its_own(any_bed):
    for host in any_bed.hosts:
        assert any_bed.ssh(host, f"echo {host.name} >> mine").returncode == 0
    assert [any_bed.ssh(host, "cat mine").stdout for host in any_bed.hosts] == ["bed1\n", "bed2\n", "bed3\n"]
    assert [(host.disk / "mine").read_text() for host in any_bed.hosts] == ["bed1\n", "bed2\n", "bed3\n"]


def test_only_the_hosts_own_keys_are_known(any_bed, tmp_path):
    config = tmp_path / "config"
    config.write_text(any_bed.ssh_config.read_text().replace(str(any_bed.known_hosts), "/dev/null"))
    argv = ["ssh", "-F", str(config), any_bed.hosts[0].ssh_name, "true"]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    assert str(Path.home() / ".ssh") not in any_bed.ssh_config.read_text()


def test_machines_have_names_boots_and_each_other(machines):
    first, second, _ = machines.hosts
    assert [machines.ssh(host, "hostname").stdout.strip() for host in machines.hosts] == [
        "bed1",
        "bed2",
        "bed3",
    ]
    own = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len({own, *(host.boot_id for host in machines.hosts)}) == 4
    ask = f"import socket; print(socket.create_connection(({second.name!r}, 22), 5).recv(4))"
    assert machines.ssh(first, f'python3 -c "{ask}"').stdout.strip() == "b'SSH-'"


def test_machines_write_only_to_their_own_disk(machines):
    refused = machines.ssh(machines.hosts[0], f"touch {Path(__file__).parent}/written")
    assert "Read-only file system" in refused.stderr
    machines.ssh(machines.hosts[0], "touch /tmp/mine-alone")
    assert not Path("/tmp/mine-alone").exists()
    assert machines.ssh(machines.hosts[1], "ls /tmp/mine-alone").returncode != 0


def test_processes_are_told_with_their_job(any_bed):
    host, other, _ = any_bed.hosts
    assert host.processes() == []
    assert left_on_server(host) == ["sleep 3600"]
    (process,) = host.processes()
    assert process.marker == "job-1"
    assert other.processes() == []
    assert host.run(["kill", str(process.pid)]).returncode == 0
    until(lambda: host.processes() == [], what="the daemon to end")


# Faults


def test_sshd_is_killed_with_its_sessions_but_not_what_ran_in_them(any_bed):
    host = any_bed.hosts[0]
    left_on_server(host)
    with ssh_session(any_bed, host, "echo here; sleep 600") as session:
        assert session.stdout.readline() == b"here\n"
        host.kill_sshd()
        assert session.wait(300) == 255
    assert host.service_pid("sshd") is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.address, host.ssh_port), 5)
    assert "sleep 3600" in argvs(host)
    host.start_sshd()
    pids = " ".join(str(process.pid) for process in host.processes())
    assert any_bed.ssh(host, f"kill {pids}").returncode == 0
    until(lambda: host.processes() == [], what="the daemon to end")


def test_a_connection_outlives_a_pulled_cable(machines):
    host = machines.hosts[1]
    with ssh_session(machines, host, COUNTER) as session:
        assert [int(session.stdout.readline()) for _ in range(3)] == [1, 2, 3]
        host.cable_out()
        assert not has_carrier(host)
        before = b""
        while not is_quiet(session.stdout, 0.5):  # data that was in flight
            before += (line := session.stdout.readline())
            assert line, "the connection has ended"
        assert select.select([session.stdout], [], [], 3.0)[0] == []
        with pytest.raises(OSError) as unreachable:
            socket.create_connection((host.address, 22), 1.0)
        assert not isinstance(unreachable.value, ConnectionRefusedError)
        assert session.poll() is None
        host.cable_in()
        assert has_carrier(host)
        last = int(before.split()[-1]) if before else 3
        assert [int(session.stdout.readline()) for _ in range(80)] == list(range(last + 1, last + 81))
    assert machines.ssh(machines.hosts[0], "true").returncode == 0


def test_a_power_cut_says_goodbye_to_nobody(machines):
    host = machines.hosts[2]
    boot = host.boot_id
    machines.ssh(host, "echo kept > kept")
    left_on_server(host)
    inside = Path(f"/proc/{host.pid}/ns/pid").readlink()
    with socket.create_connection((host.address, 22), 5) as link:
        assert link.recv(4) == b"SSH-"
        while not is_quiet(link, 0.3):
            link.recv(1024)
        host.power_off()
        assert host.pid is None
        assert is_quiet(link, 1.5)
        assert inside not in namespaces("pid")
        assert (host.disk / "kept").read_text() == "kept\n"
        with pytest.raises(BedError, match="bed3 has no power"):
            host.processes()
        host.power_on()
        with pytest.raises(ConnectionResetError):
            until(lambda: not link.send(b"SSH-2.0-test\r\n"), what="a reset")
    assert host.boot_id != boot
    assert host.processes() == []
    assert machines.ssh(host, "cat kept").stdout == "kept\n"


def test_a_disk_is_full_and_then_freed(machines):
    host, other, _ = machines.hosts
    host.fill_disk()
    refused = machines.ssh(host, "echo more > file")
    assert "No space left on device" in refused.stderr
    assert machines.ssh(other, "echo more > file").returncode == 0
    host.free_disk()
    assert machines.ssh(host, "echo more > file").returncode == 0


def test_loopback_hosts_tell_what_they_cannot(loopback):
    for fault in ("cable_out", "cable_in", "power_off", "power_on", "fill_disk", "free_disk"):
        with pytest.raises(BedError, match=f"{fault} needs hosts made of network namespaces"):
            getattr(loopback.hosts[0], fault)()


# Nothing is left behind


def namespaces(kind: str) -> set[Path]:
    found = set()
    for link in Path("/proc").glob(f"[0-9]*/ns/{kind}"):
        try:
            found.add(link.readlink())
        except OSError:
            continue
    return found


def traces(bed: Bed) -> Callable[[], list[str]]:
    """Return a function that lists all traces of a bed on this machine. Call it while the bed is up and afterwards."""
    device = Path("/sys/class/net", bed._facts.get("device", "none"))
    kinds = ("net", "mnt", "pid") if bed.kind is BedKind.NAMESPACES else ()
    pids = [host.pid for host in bed.hosts]
    links = {Path(f"/proc/{pid}/ns/{kind}").readlink() for pid in pids for kind in kinds}

    def ask() -> list[str]:
        found = [str(device)] if device.exists() else []
        found += [f"process {pid}" for pid in find_programs(None, str(bed.directory))]
        found += [str(link) for kind in kinds for link in namespaces(kind) & links]
        for mounts in Path("/proc").glob("[0-9]*/mounts"):
            try:
                found += [str(mounts)] if str(bed.directory) in mounts.read_text() else []
            except OSError:
                continue
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += [str(cmdline)] if str(bed.directory).encode() in cmdline.read_bytes() else []
            except OSError:
                continue
        return found

    return ask


@pytest.mark.parametrize("kind", BedKind)
def test_nothing_stays_of_a_bed_whose_maker_was_killed(kind, tmp_path):
    if kind is not BedKind.LOOPBACK and BedKind.best() is not kind:
        pytest.skip(f"the best here are {BedKind.best().value}")
    make = (
        "import os, pathlib\nfrom tests.bed.bed import Bed, BedKind\n"
        f"Bed.up(2, ignite=False, root_dir=pathlib.Path({str(tmp_path)!r}), kind={kind})\n"
        "os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHON": sys.executable}
    maker = subprocess.run([sys.executable, "-c", make], env=env, timeout=300)
    assert maker.returncode == -signal.SIGKILL
    bed = Bed.at(tmp_path)
    assert bed.kind is kind
    token = f"sleep 36{os.getpid()}"
    left_on_server(bed.hosts[0], token)
    if kind is BedKind.NAMESPACES:
        bed.hosts[1].run(["sh", "-c", f"setsid {token} >/dev/null 2>&1 &"])
    there = traces(bed)
    assert len(there()) > 2
    done = subprocess.run(
        [BED_SH, "down", "--directory", tmp_path], env=env, timeout=300, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert there() == []
    assert not tmp_path.exists()
    assert subprocess.run(["pgrep", "-f", f"^{token}$"], capture_output=True).stdout == b""


def test_two_beds_at_once_know_nothing_of_each_other(any_bed, tmp_path):
    with Bed.up(1, ignite=False, root_dir=tmp_path, kind=any_bed.kind) as second:
        (host,) = second.hosts
        assert host.address not in {each.address for each in any_bed.hosts}
        assert second.ssh(host, "echo $HOME").returncode == 0
        there = traces(second)
    assert there() == []
    assert any_bed.ssh(any_bed.hosts[0], "true").returncode == 0
    with pytest.raises(BedError, match="there is no bed"):
        Bed.at(tmp_path)
    tear_down(tmp_path)  # a second call does nothing


def test_a_bed_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.bed.bed.find_sshd", lambda: "/bin/false")
    with pytest.raises(BedError, match="the sshd of bed1 ended"):
        Bed.up(1, ignite=False, root_dir=tmp_path)
    assert list(find_programs(None, str(tmp_path))) == []
    assert not re.search(re.escape(str(tmp_path)), Path("/proc/mounts").read_text())


def test_the_command_makes_shows_and_removes_a_bed(tmp_path):
    directory = tmp_path / "bed"
    env = {**os.environ, "PYTHON": sys.executable}

    def bed_sh(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [BED_SH, *arguments, "--directory", directory]
        return subprocess.run(argv, env=env, timeout=300, capture_output=True, text=True)

    try:
        up = bed_sh("up", "--no-ignite", "--hosts", "2")
        assert f"ssh -F {directory}/ssh_config bed1" in up.stdout, up.stderr
        shown = bed_sh("status")
        assert [line.split()[0] for line in shown.stdout.splitlines()] == ["test", "bed1", "bed2"]
    finally:
        down = bed_sh("down")
    assert (down.returncode, down.stderr, directory.exists()) == (0, "", False)
    none = bed_sh("status")
    assert (none.returncode, none.stderr) == (1, f"bed.sh: there is no bed in {directory}\n")
