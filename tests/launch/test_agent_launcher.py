"""Runs the launcher contract on relays: one that is a child process, and one behind a real sshd."""

from __future__ import annotations

import sys

import pytest

from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.ssh import SshTransport
from tests.launch.agent_launcher import AgentLauncher
from tests.launch.contract import LauncherContract, python


class RelayContract(LauncherContract):
    @pytest.fixture
    def transport(self):
        raise NotImplementedError

    @pytest.fixture
    def host(self):
        return "box"

    @pytest.fixture
    def launcher(self, transport):
        with (
            Host("box", transport, python=sys.executable) as host,
            AgentLauncher({"box": host}, run="r1") as launcher,
        ):
            yield launcher

    @pytest.fixture
    def output(self, home):
        folder = home / "runs" / "r1"
        folder.mkdir(mode=0o700, parents=True)
        return folder / "output.log"

    def test_another_host_is_refused(self, launcher, output):
        with pytest.raises(LaunchError, match="'db1'.*hosts are: box"):
            launcher.start("db1", python("pass"), output)

    def test_output_outside_of_the_run_is_refused(self, launcher, tmp_path):
        with pytest.raises(LaunchError, match="must be in .*runs/r1"):
            launcher.start("box", python("pass"), tmp_path / "output.log")


class TestPipe(RelayContract):
    @pytest.fixture
    def transport(self, home):
        return PipeTransport({"IGNITE_TF_HOME": str(home)})


class TestSsh(RelayContract):
    @pytest.fixture
    def transport(self, box):
        return SshTransport("box", box.options)
