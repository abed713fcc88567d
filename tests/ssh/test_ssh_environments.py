"""Tests of worker environments on hosts without a package index: this machine sends all packages."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from ignite_tf_magic.errors import ConfigError, LaunchError
from ignite_tf_magic.session import RunRequest, RunState
from tests.bed.little_wheels import make_index
from tests.ssh.ssh_user import CACHE

TELL = "import little, sys\nprint(little.WORD, sys.prefix)\n"
# The real NumPy does not fit on the hosts' disks. This stand-in imports the NumPy of the test process.
SITE = sysconfig.get_path("platlib")
REAL_NUMPY = f"import sys\nsys.path.insert(0, {SITE!r})\ndel sys.modules['numpy']\nimport numpy\n"


@pytest.fixture(autouse=True)
def clean_hosts(bed, namespaces) -> Iterator[None]:
    """Clean the hosts' small disks before and after each test: the packages are large, and earlier tests left files."""
    clean(bed)
    yield
    clean(bed)


def clean(bed) -> None:
    for host in bed.hosts:
        for folder in (".cache", f"{host.state}/venvs", f"{host.state}/parcels"):
            shutil.rmtree(host.disk / folder, ignore_errors=True)


@pytest.fixture
def requirements(tmp_path, monkeypatch) -> Path:
    """A requirements file whose packages are only in this machine's index, a directory."""
    index = make_index(tmp_path / "index", little="WORD = 'told'\n", numpy=REAL_NUMPY)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    path = tmp_path / "requirements.txt"
    path.write_text("little\n")
    return path


def built_on(bed) -> dict[str, list[str]]:
    """Return the names of each host's environments and of leftovers of builds."""
    found = {}
    for host in bed.hosts:
        state = host.disk / host.state
        folders = [*(state / "venvs").glob("*"), *(state / "runs").glob("env-*")]
        found[host.name] = sorted(path.name for path in folders if path.name != ".lock")
    return found


def test_hosts_are_sent_what_they_lack_once(session, bed, said, requirements):
    def prefixes(**options) -> set[str]:
        request = RunRequest(CACHE, TELL, 3, requirements=requirements, start_timeout_s=None, **options)
        run = session.start_run(request)
        text = "".join(chunk.text for chunk in run.follow())
        assert run.info().state is RunState.SUCCEEDED, (text, run.failure())
        words = [line.split() for line in text.splitlines()]
        assert [word for word, _ in words] == ["told"] * 3
        return {prefix for _, prefix in words}

    used = prefixes()
    for name in ("bed1", "bed2", "bed3"):
        assert f"{name}: building the environment with uv" in said
        assert (
            f"{name}: that host cannot reach a package index; the wheels are downloaded here and sent" in said
        )
    built = built_on(bed)
    assert {Path(prefix).name for prefix in used} == {name for names in built.values() for name in names}
    assert [len(names) for names in built.values()] == [1, 1, 1]
    said.clear()
    assert prefixes(detach=True) == used
    assert said == []
    assert built_on(bed) == built


@pytest.mark.nightly
def test_what_cannot_be_had_is_refused_and_leaves_nothing(session, bed, requirements, tmp_path):
    """Nightly. Shorter:
    tests/runs/environments/test_environments.py::test_the_words_of_uv_tell_what_cannot_be_had
    """
    requirements.write_text("little\nabsent\n")
    with pytest.raises(LaunchError, match=r"(?s)cannot be fetched here either; pip said:.*absent"):
        session.start_run(RunRequest(CACHE, TELL, 3, requirements=requirements))
    assert not any(built_on(bed).values())
    with pytest.raises(ConfigError, match="--requirements FILE"):
        session.start_run(RunRequest(CACHE, TELL, 3, wheels=tmp_path / "index"))
    assert session.runs() == []
