"""The doctor's conclusions from facts, and an agent's reading of systemd. No host is contacted."""

from __future__ import annotations

import pytest

from ignite_tf_magic.doctor.diagnosis import (
    Diagnosis,
    Health,
    bad,
    good,
    judge_arrival,
    judge_failure,
    judge_here,
    judge_outside,
    judge_ports,
    judge_private,
    judge_probe,
    judge_same_version,
    judge_tunnel,
    judge_ways,
)
from ignite_tf_magic.errors import HostKeyRejected, HostUnreachable, NoInterpreter, SshAuthFailed
from ignite_tf_magic.launch.agent.facts import ends_at_logout
from ignite_tf_magic.launch.jobs import DeviceFacts, Gpu, HeldDevices, HostFacts, ProbeFacts
from ignite_tf_magic.ui.run_views import diagnosis_as_json, diagnosis_view
from ignite_tf_magic.ui.shell.cli import main

FACTS = HostFacts("db1", user="me", platform="linux", cpus=8, root="/home/me/state")
MODULES = {"tensorflow": "2.20.0", "numpy": "2.1.0", "fsspec": "2025.1"}


def probed(**changes):
    known = {
        "interpreter": "/opt/tf/bin/python",
        "version": "3.11.7",
        "modules": MODULES,
        "disk_free_bytes": 1 << 40,
    }
    return ProbeFacts(**{**known, **changes})


def of(checks, what):
    return next(check for check in checks if check.what == what)


@pytest.mark.parametrize(
    ("skew_s", "health", "found"),
    [(0.012, Health.GOOD, "12 ms"), (-1.9, Health.GOOD, "1900 ms"), (-75.0, Health.DOUBTFUL, "-75.0 s")],
)
def test_clocks(skew_s, health, found):
    clock = of(judge_arrival("db1", "ssh db1", FACTS, skew_s), "clock")
    assert clock.health is health
    assert clock.found.startswith(found)
    assert bool(clock.fix) is (health is not Health.GOOD)


def test_this_machine_has_no_host_key():
    assert {check.what for check in judge_arrival("db1", "this machine", FACTS, 0.0)} == {"ssh", "clock"}


def test_without_the_client_of_openssh_the_reading_of_its_configuration_is_doubtful():
    checks = judge_arrival("db1", "ssh db1", FACTS, 0.0, has_ssh=False)
    assert [check.health for check in checks if check.what == "ssh"] == [Health.GOOD, Health.DOUBTFUL]


@pytest.mark.parametrize(
    ("error", "what", "fix"),
    [
        (
            HostKeyRejected("db1", "its key is not known. Log in once: ssh db1"),
            "host key",
            "Log in",
        ),
        (
            SshAuthFailed("db1", "no key fits; install one there: ssh-copy-id db1"),
            "ssh",
            "install one there",
        ),
        (
            HostUnreachable("db1", "no answer from db1 port 22 within 10 s; try: ssh db1"),
            "ssh",
            "try: ssh db1",
        ),
        (HostUnreachable("db1", "gone"), "ssh", "try it by hand: ssh db1"),
        (NoInterpreter("db1", "it has no 'python3' (127); name one"), "agent", "name one"),
    ],
)
def test_what_keeps_us_from_a_host_and_what_to_do(error, what, fix):
    check = of(judge_failure("db1", error, "ssh db1"), what)
    assert check.health is Health.BAD
    assert check.fix.startswith(fix)
    assert fix not in check.found


@pytest.mark.parametrize(
    ("changes", "what", "health"),
    [
        ({}, "python", Health.GOOD),
        ({"version": "3.9.2"}, "python", Health.BAD),
        ({"interpreter": None}, "python", Health.BAD),
        ({"modules": {**MODULES, "tensorflow": None}}, "tensorflow", Health.BAD),
        ({"modules": {**MODULES, "fsspec": None}}, "fsspec", Health.BAD),
        ({"disk_free_bytes": 100 << 20}, "disk", Health.DOUBTFUL),
        ({"disk_free_bytes": 1 << 20}, "disk", Health.BAD),
        ({"disk_fault": "it is mounted noexec"}, "disk", Health.BAD),
        ({"gpus": (Gpu(0, name="H100"), Gpu(1, name="H100"))}, "gpus", Health.GOOD),
    ],
)
def test_interpreters_and_disks(changes, what, health):
    check = of(judge_probe("db1", "python3", FACTS, probed(**changes)), what)
    assert check.health is health
    assert bool(check.fix) is (health is not Health.GOOD)
    assert what != "gpus" or check.found == "H100, H100"


def test_versions_are_compared_as_numbers():
    probes = {
        name: probed(modules={"tensorflow": v})
        for name, v in {"a": "2.9.1", "b": "2.20.0", "c": "2.9.1"}.items()
    }
    (check,) = judge_same_version(probes)
    assert "a: 2.9.1, b: 2.20.0, c: 2.9.1" in check.found
    assert "tensorflow==2.20.0" in check.fix
    assert judge_same_version({"a": probed(), "b": probed(), "c": HostUnreachable("c", "gone")}) == []


def test_ports():
    assert judge_ports("db1", None, DeviceFacts()).health is Health.GOOD
    assert judge_ports("db1", (40, 43), DeviceFacts(free_ports=2)).found == "2 of 4 free from 40 to 43"
    held = DeviceFacts(
        leases=(HeldDevices("far-1", "w", ports=(99,)), HeldDevices("mnist-1", "w", ports=(41,))),
        free_ports=0,
    )
    assert judge_ports("db1", (40, 43), held).fix.endswith("ignite-tf stop mnist-1")
    assert judge_ports("db1", (40, 43), DeviceFacts(free_ports=0)).health is Health.BAD


def test_ways():
    check = judge_ways("db1", {"db2 at 10.0.0.2": None, "db3 at 10.0.0.3": "no answer"})
    assert (check.health, check.found) == (Health.BAD, "does not reach db3 at 10.0.0.3 (no answer)")


def test_ports_of_workers_that_are_open_to_others():
    assert judge_outside("db1", is_reached=False).health is Health.GOOD
    check = judge_outside("db1", is_reached=True)
    assert check.health is Health.DOUBTFUL
    assert "run the code of any client" in check.found
    assert "firewall" in check.fix


def test_ports_of_workers_on_this_machine():
    assert judge_here("here", []).health is Health.GOOD
    check = judge_here("here", ["192.168.1.7"])
    assert check.health is Health.DOUBTFUL
    assert "192.168.1.7" in check.found and "PyTorch" in check.found
    assert "firewall" in check.fix


def test_ports_of_workers_that_are_kept_to_their_host():
    for check in (
        judge_private("db1", is_here=False),
        judge_private("here", is_here=True),
    ):
        assert check.health is Health.GOOD
        assert "127.0.0.1 alone" in check.found


def test_hosts_of_runs_that_go_through_ssh():
    assert judge_tunnel("db1", keeps_ports=True).health is Health.GOOD
    check = judge_tunnel("db1", keeps_ports=False)
    assert check.health is Health.BAD
    assert "[launch] tunnel" in check.found and "Linux" in check.fix


def test_views_tell_what_to_do():
    diagnosis = Diagnosis(
        (good("", "ignite", "2 nodes"), good("a", "ssh", "in"), bad("a", "<disk>", "full", "mend it")), 0.5
    )
    view = diagnosis_view(diagnosis)
    assert "a, <disk>: full\n    mend it" in view.text
    assert "1 of 3 checks failed; 0.5 s" in view.text
    assert "<disk>" not in view.html
    told = diagnosis_as_json(diagnosis)
    assert told["healthy"] is False
    assert told["checks"][2] == {
        "host": "a",
        "check": "<disk>",
        "status": "failed",
        "found": "full",
        "fix": "mend it",
    }


def test_without_a_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "no cluster is configured and no embedded nodes run" in shown
    assert "ignite-tf local up" in shown


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, False),
        ({"usr/lib/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\nKillUserProcesses=no\n"}, False),
        ({"etc/systemd/logind.conf.d/a.conf": "[Login]\nKillUserProcesses=yes\n"}, True),
        (
            {
                "usr/lib/systemd/logind.conf.d/a.conf": "[Login]\nKillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/a.conf": "[Login]\nKillUserProcesses=no\n",
            },
            False,
        ),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillExcludeUsers=root me\n"}, False),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillOnlyUsers=you\n"}, False),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillOnlyUsers=me you\n"}, True),
    ],
)
def test_systemd_that_ends_processes_at_logout(tmp_path, files, ends):
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert ends_at_logout("me", str(tmp_path)) is False  # another init system
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert ends_at_logout("me", str(tmp_path)) is ends
