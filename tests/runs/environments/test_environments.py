"""Tests of worker environments, built by uv and by pip, on this machine and on hosts behind pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ignite_tf_magic.errors import ConfigError, EnvironmentFailed, HostRefused, LaunchError
from ignite_tf_magic.launch.jobs import HostFacts, ProbeFacts
from ignite_tf_magic.runs.environments.environments import prepare_environments
from ignite_tf_magic.runs.environments.requirements import Requirements, read_requirements
from ignite_tf_magic.runs.environments.wheels import platform_tags
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision import manager
from tests.bed.little_wheels import make_index, make_wheel
from tests.runs.pipe_hosts import PipeReach, host_at, plan_on
from tests.waiting import until

HERE = HostRecord("here", python=sys.executable)
TELL = "def main(): print('told')\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Use an empty uv cache, so that uv really installs every package."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.mktemp("uv")))


@pytest.fixture
def index(tmp_path) -> Path:
    return make_index(tmp_path / "index", little=TELL)


@pytest.fixture
def reach(tmp_path) -> PipeReach:
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    return PipeReach(root)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def prepare(reach, said):
    """Prepare one or more hosts and return their environments."""

    def prepare(requirements: Requirements, *hosts: HostRecord, **options) -> list[str]:
        ready = prepare_environments(hosts or (HERE,), requirements, reach, said.append, **options)
        return [host.environment for host in ready]

    return prepare


@pytest.fixture
def asked(tmp_path):
    """Write and read a requirements file, together with the wheels that it needs."""

    def asked(*lines: str, wheels: Path | None = None) -> Requirements:
        path = tmp_path / "requirements.txt"
        path.write_text("\n".join(lines))
        return read_requirements(path, wheels)

    return asked


@pytest.fixture
def slow(tmp_path) -> Path:
    """A project whose build runs until it is killed. Its file `building` holds the pid of the building process."""
    project = tmp_path / "slow"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        "[project]\nname = 'slow'\nversion = '1.0'\n"
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    mark = project / "building"
    (project / "backend.py").write_text(
        "import os, time\n"
        f"with open({str(mark)!r} + '.part', 'w') as file: file.write(str(os.getpid()))\n"
        f"os.replace({str(mark)!r} + '.part', {str(mark)!r})\n"
        "time.sleep(600)\n"
    )
    return project


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def left_in(root: Path) -> list[str]:
    """Return what builds left behind, apart from complete environments."""
    return [
        path.name for name in ("runs", "venvs") for path in (root / name).glob("*") if path.name != ".lock"
    ]


# An environment is built only once.


def test_an_environment_is_built_once_for_the_same_words(prepare, asked, index, said):
    (built,) = prepare(asked("little==1.0  # of ours", "", "# all", wheels=index))
    assert said[0] == "here: building the environment with uv"
    assert said[-1].startswith("here: the environment is ready after ")
    assert output_of(f"{built}/bin/tell-little") == "told\n"
    code = "import little, numpy, fsspec, sys; print(sys.prefix)"
    assert output_of(f"{built}/bin/python", "-c", code) == f"{built}\n"
    assert Path(built).parent.stat().st_mode & 0o077 == 0
    born = Path(built).stat().st_ino
    said.clear()
    assert prepare(asked("little==1.0", wheels=index)) == [built]
    assert Path(built).stat().st_ino == born
    assert said == []


def test_other_words_make_another_environment(prepare, asked, index, reach):
    built = prepare(asked("little", wheels=index))
    assert prepare(asked("little==1.0", wheels=index)) != built
    make_wheel(index, "more")
    assert prepare(asked("little", wheels=index)) != built
    assert len([path for path in (reach.root / "venvs").iterdir() if path.name != ".lock"]) == 3
    assert list((reach.root / "runs").iterdir()) == []


@pytest.mark.nightly
def test_where_uv_does_not_work_pip_builds(prepare, asked, index, said, tmp_path, monkeypatch):
    """Nightly. Shorter: test_an_environment_is_built_once_for_the_same_words"""
    broken = tmp_path / "bin/uv"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}{os.pathsep}{os.environ['PATH']}")
    (built,) = prepare(asked("little", wheels=index))
    assert said[0] == "here: building the environment with pip"
    assert output_of(f"{built}/bin/tell-little") == "told\n"


def test_hosts_are_given_uv_and_wheels_and_run_workers_with_them(
    prepare, asked, index, said, tmp_path, runs_dir
):
    hosts = [host_at(tmp_path, name) for name in ("a", "b")]
    built = prepare(asked("little", wheels=index), *hosts)
    assert [Path(each).parent for each in built] == [tmp_path / "a/venvs", tmp_path / "b/venvs"]
    assert {line.partition(":")[0] for line in said} == {"a", "b"}
    assert {f"{name}: building the environment with uv" for name in "ab"} <= set(said)
    ready = [replace(host, environment=each) for host, each in zip(hosts, built, strict=True)]
    script = "import little, sys\nlittle.main()\nprint(sys.prefix)"
    run = manager.start_run(plan_on(ready[:1], script), runs_dir, PipeReach(runs_dir.parent))
    assert "".join(chunk.text for chunk in run.follow()) == f"told\n{built[0]}\n"
    assert run.wait(300).state is RunState.SUCCEEDED


def test_two_runs_that_want_the_same_at_once_build_it_once(prepare, asked, index, said):
    requirements = asked("little", wheels=index)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(prepare, requirements) for _ in range(2))
        assert first.result() == second.result()
    assert sum("is ready" in line for line in said) == 1


def test_an_environment_that_does_not_work_any_more_is_built_again(prepare, asked, index):
    requirements = asked("little", wheels=index)
    (built,) = prepare(requirements)
    Path(built, "bin/python").unlink()
    assert prepare(requirements) == [built]
    assert output_of(f"{built}/bin/tell-little") == "told\n"


# Hosts without a package index.


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_an_environment_into_which_another_account_has_written_is_built_again(
    prepare, asked, index, tmp_path
):
    requirements, trace = asked("little", wheels=index), tmp_path / "somebody-ran-it"
    (built,) = prepare(requirements)
    [site] = (Path(built) / "lib").glob("python3*/site-packages")
    planted = site / "planted.pth"
    planted.write_text(f"import os; open({str(trace)!r}, 'w').close()\n")
    os.chown(planted, 54321, 54321)
    assert prepare(requirements) == [built]
    assert not planted.exists()
    assert not trace.exists()


@pytest.mark.nightly
def test_wheels_are_fetched_here_for_a_host_without_an_index(
    prepare, asked, index, said, monkeypatch, tmp_path
):
    """uv may not use the network, and pip on this machine uses a directory as its index.

    Nightly. Shorter: test_an_environment_is_built_once_for_the_same_words
    """
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    (built,) = prepare(asked("little"), host_at(tmp_path, "a"))
    assert output_of(f"{built}/bin/tell-little") == "told\n"
    assert "a: that host cannot reach a package index; the wheels are downloaded here and sent" in said
    with pytest.raises(LaunchError, match=r"(?s)cannot be fetched here either; pip said:.*absent"):
        prepare(asked("absent"), host_at(tmp_path, "a"))
    assert list((tmp_path / "a/runs").iterdir()) == []


# Requirements that cannot be built.


def test_the_words_of_uv_tell_what_cannot_be_had(prepare, asked, index, reach):
    with pytest.raises(EnvironmentFailed, match=r"(?s)requirements.txt.*absent.*have everything") as failed:
        prepare(asked("little", "absent==3", wheels=index))
    assert failed.value.host == "here"
    assert left_in(reach.root) == []


def test_numpy_and_fsspec_are_needed_beside_what_is_asked_for(prepare, asked, tmp_path, reach):
    make_wheel(tmp_path / "index", "little")
    with pytest.raises(
        EnvironmentFailed, match=r"(?s)numpy.*have everything that they require, numpy and fsspec"
    ):
        prepare(asked("little", wheels=tmp_path / "index"))
    assert left_in(reach.root) == []


def test_all_hosts_that_failed_are_named(prepare, asked, index, tmp_path):
    hosts = [host_at(tmp_path, name) for name in ("a", "b")]
    with pytest.raises(EnvironmentFailed, match="It failed on b, too"):
        prepare(asked("absent", wheels=index), *hosts)


def test_an_interpreter_that_is_not_there(prepare, asked, index):
    with pytest.raises(HostRefused, match="no interpreter '/no/python'"):
        prepare(asked("little", wheels=index), python="/no/python")


# Interrupted builds.


def building(project: Path) -> int:
    mark = project / "building"
    until(mark.exists, what="the building")
    return int(mark.read_text())


def test_a_build_that_is_killed_leaves_nothing(prepare, asked, slow, reach):
    def kill():
        backend = psutil.Process(building(slow))
        builder = next(
            each for each in backend.parents() if any("build.py" in word for word in each.cmdline())
        )
        builder.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(EnvironmentFailed, match="cannot be built"):
        prepare(asked(f"slow @ {slow.as_uri()}"))
    killer.join()
    assert not psutil.pid_exists(building(slow))
    assert left_in(reach.root) == []


def test_an_interrupt_ends_the_building_and_leaves_nothing(prepare, asked, slow, reach):
    def interrupt():
        building(slow)
        # A system gives the signal of a Ctrl-C to any thread: to the main one mostly, not always.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        prepare(asked(f"slow @ {slow.as_uri()}"))
    interrupter.join()
    assert not psutil.pid_exists(building(slow))
    assert left_in(reach.root) == []


def test_what_a_lost_caller_left_is_removed_and_runs_are_not(prepare, asked, index, reach):
    lost, run, young = (
        reach.root / "runs" / name for name in ("env-0123abcd", "env-1121-2051-abc", "env-89abcdef")
    )
    for path in (lost, run, young):
        path.mkdir(parents=True)
    for path in (lost, run):
        os.utime(path, (0, 0))
    prepare(asked("little", wheels=index))
    assert sorted((reach.root / "runs").iterdir()) == [run, young]


# Parsing of requirements files.


@pytest.mark.parametrize(
    "line", ["-r other.txt", "--requirement=other.txt", "-c low.txt", "-e .", "./here", "/a.whl"]
)
def test_requirements_name_no_other_files(asked, line):
    with pytest.raises(ConfigError, match="refers to another file .*uv pip compile"):
        asked("little", line)


def test_requirements_that_cannot_be_read(tmp_path, asked):
    with pytest.raises(ConfigError, match=r"absent.txt.*No such file"):
        read_requirements(tmp_path / "absent.txt")
    with pytest.raises(ConfigError, match="pip download -r .*numpy fsspec"):
        asked("little", wheels=tmp_path)


def test_what_makes_another_environment():
    facts, python = HostFacts("h", platform="linux", machine="x86_64"), ProbeFacts("/bin/python", "3.11.7")
    words = Requirements("one.txt", ("little",))
    name = words.digest_on(facts, python)
    assert replace(words, name="two.txt").digest_on(replace(facts, hostname="i"), python) == name
    others = {
        name,
        replace(words, lines=("little==1",)).digest_on(facts, python),
        words.digest_on(replace(facts, machine="aarch64"), python),
        words.digest_on(facts, replace(python, version="3.11.8")),
        words.digest_on(facts, replace(python, interpreter="/opt/python")),
    }
    assert len(others) == 5


def test_tags_of_wheels_for_a_host():
    tags = platform_tags({"platform": "linux-x86_64", "libc": "glibc 2.18"})
    assert tags[:3] == ("manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    assert tags[-2:] == ("manylinux1_x86_64", "linux_x86_64")
    assert platform_tags({"platform": "macosx-11.0-arm64", "libc": None}) == ("macosx_11_0_arm64",)
