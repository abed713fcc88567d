from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ignite_tf_magic.embedded.jars import resolve_jars
from ignite_tf_magic.errors import EmbeddedError
from ignite_tf_magic.settings.options import cache_dir
from tests.embedded.mirror import MODULES, VERSION, Mirror, serving

RESOLVE = f"""
from ignite_tf_magic.embedded.jars import resolve_jars
print(len(resolve_jars({VERSION!r}, print)))
"""


# jgo drops unread responses and leaves their connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in cache_dir().parents
    yield
    gc.collect()


@pytest.fixture
def mirror(monkeypatch):
    mirror = Mirror()
    with serving(mirror) as url:
        monkeypatch.setenv("IGNITE_TF_MAVEN_REPOSITORY", url)
        yield mirror


def folder() -> Path:
    return cache_dir() / f"ignite-{VERSION}"


def leftovers() -> list[str]:
    return sorted(path.name for path in cache_dir().iterdir() if not path.name.endswith(".lock"))


def nothing(line: str) -> None:
    del line


def test_the_first_start_downloads_each_jar_once_and_the_second_asks_nobody(mirror, monkeypatch, tmp_path):
    told: list[str] = []
    jars = resolve_jars(VERSION, told.append)
    assert sorted(jar.name for jar in jars) == mirror.jars()
    assert all(zipfile.is_zipfile(jar) for jar in jars)
    assert {mirror.asked[name] for name in mirror.jars()} == {1}
    assert "27 MB" in told[0]
    assert leftovers() == [f"ignite-{VERSION}"]
    assert not (tmp_path / ".m2").exists()

    requests = mirror.asked.total()
    monkeypatch.setitem(sys.modules, "jgo", None)
    assert resolve_jars(VERSION, told.append) == jars
    assert (mirror.asked.total(), len(told)) == (requests, 1)


def test_a_jar_that_was_damaged_is_downloaded_again(mirror):
    jars = resolve_jars(VERSION, nothing)
    jars[0].write_bytes(b"short")
    assert resolve_jars(VERSION, nothing) == jars
    assert all(zipfile.is_zipfile(jar) for jar in jars)


@pytest.mark.parametrize("fault", ["cut", "garbage"])
def test_a_jar_that_arrives_broken_is_no_jar_and_leaves_nothing(mirror, fault):
    getattr(mirror, fault).add(f"ignite-indexing-{VERSION}.jar")
    with pytest.raises(EmbeddedError, match="could not fetch"):
        resolve_jars(VERSION, nothing)
    assert leftovers() == []


def test_no_network_tells_what_was_asked_what_came_back_and_what_to_do(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://someone:hush@127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("IGNITE_TF_MAVEN_REPOSITORY", f"{address}/maven")
    with pytest.raises(EmbeddedError) as caught:
        resolve_jars(VERSION, nothing)
    message = str(caught.value)
    assert all(f"org.apache.ignite:{module}:{VERSION}" in message for module in MODULES)
    assert "refused" in message
    assert "IGNITE_TF_MAVEN_REPOSITORY" in message and str(folder()) in message
    assert "hush" not in message
    assert leftovers() == []


def test_a_version_that_nobody_has_is_told_without_the_password_of_the_mirror(mirror, monkeypatch):
    with_password = os.environ["IGNITE_TF_MAVEN_REPOSITORY"].replace("://", "://someone:hush@")
    monkeypatch.setenv("IGNITE_TF_MAVEN_REPOSITORY", with_password)
    with pytest.raises(EmbeddedError, match=r"org\.apache\.ignite:ignite-core:9\.9\.9") as caught:
        resolve_jars("9.9.9", nothing)
    assert "not found" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_without_jgo_the_extra_to_install_is_named(mirror, monkeypatch):
    monkeypatch.setitem(sys.modules, "jgo", None)
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(EmbeddedError, match=r"pip install 'ignite_tf_magic\[local\]'"):
        resolve_jars(VERSION, nothing)


def test_a_download_that_was_killed_leaves_no_broken_folder(mirror):
    mirror.stall.add(f"ignite-core-{VERSION}.jar")
    with subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.DEVNULL) as process:
        assert mirror.stalled.wait(300)
        os.kill(process.pid, signal.SIGKILL)
    assert not folder().exists()
    mirror.stall.clear()
    assert len(resolve_jars(VERSION, nothing)) == len(MODULES)
    assert leftovers() == [f"ignite-{VERSION}"]


def test_two_first_starts_at_once_download_once(mirror):
    mirror.stall.add(f"ignite-core-{VERSION}.jar")
    processes = []
    for _ in range(2):
        processes.append(subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.PIPE, text=True))
        assert mirror.stalled.wait(300)
    waiting = processes[1].stdout
    assert waiting is not None
    assert "waiting for another process" in waiting.readline()
    mirror.go_on.set()
    answers = [process.communicate(timeout=300)[0] for process in processes]
    assert [answer.strip().splitlines()[-1] for answer in answers] == ["3", "3"]
    assert {mirror.asked[name] for name in mirror.jars()} == {1}
