"""Tests of completion in shells and after the magic, from the table of commands and from existing objects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, open_session
from ignite_tf_magic.ui.commands.table import NAMES_IN, commands
from ignite_tf_magic.ui.completion import candidates as all_candidates

COMMANDS, _ = commands()


def candidates(words, beginning):
    return list(all_candidates(words, beginning).words)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def configured(home, ignite, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    return ignite


@pytest.fixture
def numbers(configured):
    """A cache."""
    with open_session(report=print) as session:
        session.load("COMPLETED", {"x": np.arange(9)}, replace=True)
        yield "COMPLETED"
        session.client.destroy_cache("COMPLETED")


def test_each_command_is_found_by_its_first_word():
    for module, names in NAMES_IN.items():
        for name in names.split():
            found, groups = commands(name)
            assert {each.name.partition(" ")[0] for each in found} == set(names.split()), module
            assert set(groups) <= set(names.split())


def test_every_command_is_there(home):
    firsts = {command.name.partition(" ")[0] for command in COMMANDS}
    assert set(candidates([], "")) == firsts
    for first in ("fs", "local"):
        seconds = {
            command.name.partition(" ")[2] for command in COMMANDS if command.name.startswith(f"{first} ")
        }
        assert set(candidates([first], "")) == seconds


@pytest.mark.parametrize(
    ("words", "beginning", "expected"),
    [
        ([], "res", ["resume"]),
        (["fs"], "mk", ["mkdir", "mkfs"]),
        (["start"], "--stop", ["--stop-on-nan"]),
        (["load", "X", "digits", "--split"], "t", ["train", "test"]),
        (["start", "--on-rebalance"], "", ["restart", "ignore"]),
        (["start", "--workers"], "", []),
        (["stop", "nothing"], "", []),
        (["start"], "--strategy=as", ["--strategy=async"]),
        (["start"], "--on-rebalance=", ["--on-rebalance=restart", "--on-rebalance=ignore"]),
        (["start"], "--workers=", []),
        (["nonsense"], "", []),
    ],
)
def test_words_of_the_table(home, words, beginning, expected):
    assert [word for word in candidates(words, beginning) if words != ["nonsense"]] == expected


@pytest.mark.parametrize(
    ("words", "beginning", "may_be"),
    [
        (["profile", "X"], "", False),
        (["load", "X"], "", True),
        (["fs", "put"], "", True),
        (["history", "--best"], "", False),
        (["history"], "--best=", False),
        (["start", "--strategy"], "", False),
        (["start", "--workers"], "", False),
        (["start", "--script"], "", True),
        (["start"], "--script=", True),
        (["start", "--python"], "", True),
    ],
)
def test_a_name_that_no_file_has_is_no_file(home, words, beginning, may_be):
    assert all_candidates(words, beginning).or_files is may_be


def test_caches_and_runs(home, numbers):
    assert candidates(["start"], numbers[:5]) == [numbers]
    assert numbers in candidates(["doctor"], "")
    with open_session(report=print) as session:
        run = session.start_run(RunRequest(numbers, "pass"))
        run.wait(300)
    assert candidates(["attach"], run.id[:4]) == [run.id]
    assert run.id in candidates(["history", run.id], "")


def test_nothing_is_started_to_ask(home):
    assert candidates(["start"], "") == []
    assert not (home / "embedded").exists()


def test_a_cluster_that_is_not_there_is_not_waited_for(home, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", "127.0.0.1:9")
    assert candidates(["doctor"], "") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [("ignite-tf fs mk", ["mkdir", "mkfs"]), ("ignite-tf start --strategy = as", ["async"])],
)
def test_bash_completes(home, words, expected):
    script = """
    PATH="$1:$PATH"
    eval "$(ignite-tf completion bash)"
    COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _ignite_tf
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    bin_directory = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-c", script, "bash", bin_directory, words],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_lines_for_other_shells_are_read_by_them(home, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    lines = subprocess.run(
        [sys.executable, "-m", "ignite_tf_magic", "completion", shell],
        capture_output=True,
        timeout=300,
        check=True,
    ).stdout
    subprocess.run([shell, "-n", "/dev/stdin"], input=lines, timeout=300, check=True)
