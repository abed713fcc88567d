"""Fixtures for tests of relays: a host's home, and a real sshd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.sshd import Sshd, find_sshd


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of this package's files on a host."""
    return tmp_path / "home"


@pytest.fixture
def server(tmp_path: Path, home: Path) -> Sshd:
    """An sshd that has not been started."""
    if find_sshd() is None:
        pytest.skip("needs OpenSSH's sshd")
    return Sshd(tmp_path / "sshd", env={"IGNITE_TF_HOME": str(home)})


@pytest.fixture
def box(server: Sshd) -> Iterator[Sshd]:
    """A running sshd, whose host key the client knows."""
    with server:
        yield server
