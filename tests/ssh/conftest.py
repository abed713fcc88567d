"""Fixtures: three hosts with an Ignite node each, and a user of them on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.session import Session, list_runs, open_session, stop_run
from ignite_tf_magic.settings.options import read_config
from ignite_tf_magic.ui.shell.cli import main
from tests.bed.bed import Bed, BedKind
from tests.ssh.ssh_user import CACHE, PASSWORD, USER, Shell, left_on, load_numbers, settings
from tests.waiting import until


@pytest.fixture(scope="package")
def bed(tmp_path_factory) -> Iterator[Bed]:
    """One bed for all tests of this directory. A test must leave it unchanged.

    IGNITE_TF_BED is "loopback", or the directory of a running bed (tests/bed/bed.sh).
    """
    chosen = os.environ.get("IGNITE_TF_BED", "")
    if "/" in chosen:
        yield Bed.at(Path(chosen))
        return
    kind = BedKind.LOOPBACK if chosen == "loopback" else None
    with Bed.up(root_dir=tmp_path_factory.mktemp("bed"), kind=kind) as made:
        yield made


@pytest.fixture(scope="package")
def data(bed) -> str:
    load_numbers(bed)
    return CACHE


@pytest.fixture
def namespaces(bed) -> None:
    """Skip tests that need hosts with their own network and processes."""
    if bed.kind is not BedKind.NAMESPACES:
        pytest.skip(f"not on {bed.kind.value}")


@pytest.fixture
def home(bed, data, tmp_path, monkeypatch) -> Path:
    """The state directory of a user whose working directory contains the configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    Path("ignite-tf.toml").write_text(settings(bed))
    return tmp_path / "home"


@pytest.fixture
def trusted(bed, home) -> None:
    """Configure a password. The nodes do not ask for one, but clients send it anyway."""
    Path("ignite-tf.toml").write_text(settings(bed, cluster={"username": USER, "password": PASSWORD}))
    Path("ignite-tf.toml").chmod(0o600)


@pytest.fixture
def said() -> list[str]:
    """The messages that the test's session reports to its user."""
    return []


@pytest.fixture
def session(home, said) -> Iterator[Session]:
    with open_session(report=said.append) as opened:
        yield opened


@pytest.fixture
def configure(bed, home, monkeypatch) -> Callable[..., None]:
    """Write another configuration for the sessions that follow."""

    def write(**tables: Any) -> None:
        Path("ignite-tf.toml").write_text(settings(bed, **tables))
        read_config()

    return write


@pytest.fixture
def elsewhere(bed, data, tmp_path) -> Shell:
    return Shell(tmp_path / "elsewhere", bed)


@pytest.fixture
def here(elsewhere, monkeypatch, capsys) -> Callable[..., Any]:
    """Run `ignite-tf` as the user of the other machine, inside this process to save time; check the exit code.

    Returns (stdout, stderr). With --json, stdout is parsed.
    """
    monkeypatch.chdir(elsewhere.directory)
    monkeypatch.setenv("IGNITE_TF_HOME", elsewhere.env["IGNITE_TF_HOME"])
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)

    def run(*arguments: str, code: int = 0) -> tuple[Any, str]:
        found = main(arguments)
        shown = capsys.readouterr()
        assert found == code, (arguments, shown.out, shown.err)
        return (json.loads(shown.out) if "--json" in arguments else shown.out), shown.err

    return run


@pytest.fixture(autouse=True)
def nothing_is_left(bed, tmp_path) -> Iterator[None]:
    """Assert that no process on any host outlives its test."""
    yield
    try:
        until(lambda: not _left(bed), what=lambda: f"the end of {_left(bed)}")
    except AssertionError:
        _stop_all_runs(bed, tmp_path)  # then only this test fails
        raise
    with connect(bed.connect_options) as client, Registry(client) as registry:
        for entry in registry.runs():  # lost runs would stay listed for a day
            registry.remove(str(entry.record["run_id"]))


def _left(bed: Bed) -> dict[str, Any]:
    return {host.name: found for host in bed.hosts if host.pid and (found := left_on(host))}


def _stop_all_runs(bed: Bed, directory: Path) -> None:
    config = directory / "all.toml"
    config.write_text(settings(bed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITE_TF_HOME", str(directory / "stopping"))
        for run in list_runs(config=config):
            stop_run(run.id, config)
