from __future__ import annotations

import pytest
from contract import LauncherContract, python

from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.launch.local import LOCAL_HOST, LocalLauncher


class TestLocalLauncher(LauncherContract):
    @pytest.fixture
    def launcher(self):
        return LocalLauncher()

    @pytest.fixture
    def host(self):
        return LOCAL_HOST

    def test_another_host_is_refused(self, launcher, output):
        with pytest.raises(LaunchError, match="db1"):
            launcher.start("db1", python("pass"), output)
        assert not output.exists()

    def test_output_that_cannot_be_written(self, launcher, tmp_path):
        with pytest.raises(LaunchError, match="cannot write the output"):
            launcher.start(LOCAL_HOST, python("pass"), tmp_path / "no" / "such.log")
