"""Tests of `ignite-tf doctor` on real hosts: its findings, its advice, and its report when parts are down."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from ignite_tf_magic.session import open_session
from tests.ssh.ssh_user import another_tensorflow, changed_ssh_config, known_hosts_without, load_numbers
from tests.waiting import until

WAITS = "import time; print('waits', flush=True); time.sleep(600)"


def found_by(diagnosis, host):
    """Return the checks of a host, by name."""
    return {each["check"]: each for each in diagnosis["checks"] if each["host"] == host}


def fault(diagnosis, host, what):
    """Assert that a check failed; return its finding and its fix."""
    check = found_by(diagnosis, host)[what]
    assert check["status"] == "failed", check
    assert check["fix"]
    return check["found"], check["fix"]


@pytest.fixture
def doctor(here):
    """Run `ignite-tf doctor --json` and return its parsed output."""
    return lambda *arguments, code=0: here("doctor", *arguments, "--json", code=code)[0]


def test_a_healthy_cluster(doctor, here, bed):
    diagnosis = doctor("NUMBERS")
    assert diagnosis["healthy"]
    for host in bed.hosts:
        checks = found_by(diagnosis, host.name)
        wanted = "ssh,host key,clock,python,tensorflow,numpy,fsspec,disk,gpus,ports,ignite,network,exposure"
        assert set(checks) == set(wanted.split(","))
        assert {each["status"] for what, each in checks.items() if what not in ("disk", "exposure")} == {"ok"}
        assert checks["exposure"]["status"] == "warning"  # no firewall separates this machine from the bed
        assert re.fullmatch(
            r"\d+ primary partitions of NUMBERS, about [\d,]+ rows", checks["ignite"]["found"]
        )
        assert all(other.name in checks["network"]["found"] for other in bed.hosts if other != host)
    assert "3,000 rows in 1,024 partitions, 1 backup" in found_by(diagnosis, None)["ignite"]["found"]
    assert not any(each["fix"] for each in diagnosis["checks"] if each["status"] == "ok")

    shown = here("doctor")[0]
    assert "checks, none failed" in shown
    assert re.search(r"^bed2 +ssh +ok +ssh bed2 as ", shown, re.M)
    assert "no cache 'NUMBRES': did you mean 'NUMBERS'?" in here("doctor", "NUMBRES", code=1)[1]


def test_ports_of_workers_on_a_single_host_are_looked_at_from_outside(doctor, elsewhere, bed):
    """The check also works while Ignite is down."""
    first, *others = bed.hosts
    elsewhere.configure(bed, cluster={"addresses": [f"{first.address}:9"]})
    path = elsewhere.directory / "ignite-tf.toml"
    for host in others:
        path.write_text(re.sub(rf"\[hosts\.{host.name}\]\n(?:.+\n)*", "", path.read_text()))
    checks = found_by(doctor(code=1), first.name)
    assert "network" not in checks
    assert checks["exposure"]["status"] == "warning"
    assert "reaches the ports of workers there" in checks["exposure"]["found"]


def test_ssh_that_does_not_let_us_in(doctor, here, elsewhere, bed):
    """A changed host key, an unknown host key, and a server that rejects all our login keys."""
    folder = elsewhere.directory
    stranger = folder / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    changed, unknown = (
        known_hosts_without(bed, "bed1", folder, is_changed=True),
        known_hosts_without(bed, "bed2", folder),
    )
    config = changed_ssh_config(
        bed,
        folder,
        bed1={bed.known_hosts: changed},
        bed2={bed.known_hosts: unknown},
        bed3={bed.identity: stranger},
    )
    elsewhere.configure(bed, ssh={"config": config})

    diagnosis = doctor("NUMBERS", code=1)
    found, fix = fault(diagnosis, "bed1", "host key")
    assert "its key is not the one in" in found
    assert "ssh-keygen -R" in fix
    found, fix = fault(diagnosis, "bed2", "host key")
    assert "its key is not known" in found
    assert "ssh-keyscan" in fix
    found, fix = fault(diagnosis, "bed3", "ssh")
    assert "does not accept any of our keys" in found
    assert "ssh-copy-id" in fix
    # Ignite itself is reachable, and shows the partitions of these hosts.
    assert all("primary partitions" in found_by(diagnosis, h.name)["ignite"]["found"] for h in bed.hosts)
    shown = here("doctor", code=1)[0]
    assert re.search(r"^bed3, ssh: .*\n    .*ssh-copy-id", shown, re.M)
    assert "3 of " in shown


def test_interpreters(doctor, elsewhere, bed):
    """A missing interpreter, one without TensorFlow, and one whose version differs from the third host's."""
    bare = shutil.which("python3", path="/usr/bin")
    elsewhere.configure(bed, bed1={"python": "/nowhere/python"}, bed2={"python": bare})
    diagnosis = doctor(code=1)
    found, fix = fault(diagnosis, "bed1", "python")
    assert "/nowhere/python" in found
    assert "ignite-tf.toml" in fix
    found, fix = fault(diagnosis, "bed2", "tensorflow")
    assert found == f"missing in {bare}"
    assert "pip install tensorflow" in fix

    with another_tensorflow(bed.hosts[0]) as python:
        elsewhere.configure(bed, bed1={"python": python})
        found, fix = fault(doctor(code=1), None, "tensorflow")
        assert "versions differ (bed1: 2.15.0, bed2: " in found
        assert "pip install tensorflow==" in fix
        # --python sets the interpreter for this command only.
        assert doctor("--python", sys.executable)["healthy"]


def test_an_address_that_others_do_not_reach(doctor, elsewhere, bed):
    elsewhere.configure(bed, bed2={"tf_address": "192.0.2.1"})
    diagnosis = doctor(code=1)
    for name in ("bed1", "bed3"):
        found, fix = fault(diagnosis, name, "network")
        assert "does not reach bed2 at 192.0.2.1" in found
        assert "tf_address" in fix
    assert found_by(diagnosis, "bed2")["network"]["status"] == "ok"


@pytest.mark.nightly
def test_ports_that_a_run_holds(doctor, here, elsewhere, bed, namespaces):
    """The doctor names the run that holds them. Another run is refused, or waits.

    Nightly. Shorter: tests/doctor/test_diagnosis.py::test_ports
    """
    elsewhere.configure(bed, launch={"ports": "45200-45200"})
    (elsewhere.directory / "job").mkdir()
    start = ("start", "--workers", "3", "--detach", "--start-timeout", "600")
    job = ("NUMBERS", "job", "python", "-c", WAITS)
    run = here(*start, *job)[0].strip()
    with elsewhere.start("attach", run) as watching:
        watching.until("waits")
    found, fix = fault(doctor(code=1), "bed1", "ports")
    assert found == "0 of 1 free from 45200 to 45200"
    assert f"ignite-tf stop {run}" in fix
    refused = here(*start, *job, code=1)[1]
    assert "45200" in refused
    assert "--wait" in refused
    here("stop", run)
    assert doctor()["healthy"]


def test_a_host_that_ends_processes_at_logout(doctor, elsewhere, bed, namespaces):
    host = bed.hosts[1]
    settings = "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n"
    place = "/run/systemd/logind.conf.d"
    host.run(["mkdir", "-p", "/run/systemd/system", place])
    host.run(["tee", f"{place}/strict.conf"], input=settings)
    try:
        diagnosis = doctor(code=1)
        found, fix = fault(diagnosis, host.name, "logout")
        assert "runs end with the connection" in found
        assert "KillUserProcesses=no" in fix
        assert "logout" not in found_by(diagnosis, "bed1")
    finally:
        host.run(["rm", "-r", "/run/systemd"])


def test_a_full_disk_and_a_dead_sshd(doctor, elsewhere, bed, namespaces):
    full, dead = bed.hosts[0], bed.hosts[2]
    assert doctor()["healthy"]
    full.fill_disk()
    dead.kill_sshd()
    try:
        diagnosis = doctor("NUMBERS", code=1)
        found, fix = fault(diagnosis, full.name, "disk")
        assert found.startswith("0.0 GiB free")
        assert "make room" in fix
        found, fix = fault(diagnosis, dead.name, "ssh")
        assert "refused the connection" in found
        assert "sshd" in fix
        assert "primary partitions" in found_by(diagnosis, dead.name)["ignite"]["found"]
        assert "bed2" in found_by(diagnosis, full.name)["network"]["found"]
    finally:
        full.free_disk()
        dead.start_sshd()


def await_nodes(bed, num_nodes):
    """Block until the other nodes have noticed that a node left or returned."""
    with open_session(bed.connect_options, report=print) as session:
        until(lambda: len(session.client.nodes()) == num_nodes, what=session.client.nodes)


@pytest.mark.faults
@pytest.mark.nightly
def test_nodes_that_the_cluster_lacks(doctor, here, elsewhere, bed, namespaces):
    """One node dies, and then restarts as a cluster of its own.

    Nightly. No shorter one: in no other test does the doctor see a cluster that lacks a node.
    """
    host = bed.hosts[2]
    config = host.directory / "ignite.xml"
    whole = config.read_text()
    alone = re.sub(r"<list>.*</list>", f"<list><value>{host.address}:47500</value></list>", whole)
    host.kill_node()
    try:
        await_nodes(bed, len(bed.hosts) - 1)
        diagnosis = doctor("NUMBERS", code=1)
        found, fix = fault(diagnosis, host.name, "ignite")
        assert found.startswith(f"no Ignite node at {host.endpoint}: ")
        assert "start the Ignite node" in fix
        told = found_by(diagnosis, None)["ignite"]
        assert told["status"] == "warning"
        assert f"2 of 3 nodes are in one cluster; {host.endpoint} does not answer" in told["found"]
        assert "2 nodes; NUMBERS: 3,000 rows" in told["found"]

        config.write_text(alone)
        host.start_node()
        diagnosis = doctor("NUMBERS", code=1)
        found, fix = fault(diagnosis, host.name, "ignite")
        assert "a cluster of its own (alone)" in found
        assert "restart the Ignite node" in fix
        assert found_by(diagnosis, host.name)["ssh"]["status"] == "ok"
        assert found_by(diagnosis, "bed1")["ignite"]["status"] == "ok"
        told = found_by(diagnosis, None)["ignite"]
        assert told["status"] == "warning"
        assert f"the node at {host.endpoint} is a cluster of its own (alone)" in told["found"]

        # The larger side has all rows. It starts runs, with a warning.
        (elsewhere.directory / "job").mkdir()
        shown, said = here("start", "--workers", "1", "--explain", "NUMBERS", "job", "python", "-c", "pass")
        assert "3,000" in shown
        assert f"warning: not in this cluster: the node at {host.endpoint} is a cluster of its own" in said
    finally:
        host.kill_node()
        config.write_text(whole)
        host.start_node(wait=False)
        host.await_node(len(bed.hosts))
        load_numbers(bed)
    assert doctor("NUMBERS")["healthy"]
