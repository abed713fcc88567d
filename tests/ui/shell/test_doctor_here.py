"""Tests of `ignite-tf doctor` with all workers on this machine: can other machines reach their ports?"""

from __future__ import annotations

import json
import socket

import pytest

from ignite_tf_magic.doctor import doctor as doctor_module
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.ui.shell.cli import main


@pytest.fixture
def exposure(tmp_path, ignite, monkeypatch, capsys):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))

    def exposure():
        assert main(["doctor", "--json"]) == 0
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next(each for each in checks if each["check"] == "exposure")

    return exposure


def test_an_address_that_others_know_is_warned_of(exposure, monkeypatch):
    monkeypatch.setattr(loopback, "library", lambda: None)  # as if there was no compiler
    with socket.create_server(("", 0), family=socket.AF_INET) as server:  # like servers of workers
        for address in doctor_module._outward_addresses():
            if ":" not in address:
                socket.create_connection((address, server.getsockname()[1]), 10).close()
    monkeypatch.setattr(doctor_module, "_outward_addresses", lambda: ["198.51.100.7"])
    check = exposure()
    assert check["status"] == "warning"
    assert "198.51.100.7" in check["found"]
    assert "firewall" in check["fix"]


@pytest.mark.skipif(loopback.library() is None, reason="Linux and a compiler are needed")
def test_workers_that_listen_to_this_machine_alone_are_well(exposure, monkeypatch):
    monkeypatch.setattr(doctor_module, "_outward_addresses", lambda: ["198.51.100.7"])
    check = exposure()
    assert check["status"] == "ok"
    assert "127.0.0.1 alone" in check["found"]


def test_a_machine_that_nobody_reaches_is_well(exposure, monkeypatch):
    monkeypatch.setattr(doctor_module, "_outward_addresses", list)
    assert exposure()["status"] == "ok"
