"""Tests of completion in real shells on a terminal; names of caches contain commands, patterns and control codes."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.session import open_session
from tests.waiting import until

if sys.platform == "win32":
    pytest.skip("terminals of this kind are POSIX's", allow_module_level=True)
import pty

HIT = "hit"  # created if a shell executes a name
NAMES = [
    f"HA$(touch {HIT})",
    f"HB;touch {HIT};(touch {HIT})&touch {HIT}|cat>{HIT}",
    f'HC`touch {HIT}`"$(touch {HIT})"',
    "HD*",
    f"HE' ; touch {HIT} ; '{{a,b}} \\ !x #",
]
UNSPEAKABLE = ["HX\x1b]0;titled\x07", f"HY\ntouch {HIT}", "--python=HZ"]

LINES = {
    "bash": ["PS1=; bind 'set bell-style none'", 'eval "$(ignite-tf completion bash)"'],
    "zsh": ["PS1=; autoload -Uz compinit; compinit -u -D", 'eval "$(ignite-tf completion zsh)"'],
    "fish": ["function fish_prompt; end; function fish_title; end", "ignite-tf completion fish | source"],
}
COMMANDS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}


class Terminal:
    """A shell in a pseudo-terminal: types into it and collects its output."""

    def __init__(self, argv):
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvp(argv[0], argv)
        self.written = b""

    def type(self, text):
        os.write(self._fd, text.encode())

    def read(self):
        """Collect the output so far; otherwise the shell would block when the buffer is full."""
        while select.select([self._fd], [], [], 0)[0]:
            try:
                self.written += os.read(self._fd, 1 << 16)
            except OSError:  # the shell has ended
                return self.written
        return self.written

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def hostile_caches(tmp_path, ignite, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    with open_session(report=lambda _: None) as session:
        for name in (*NAMES, *UNSPEAKABLE):
            session.client.get_or_create_cache(CacheConfig(name))
        yield
        for name in (*NAMES, *UNSPEAKABLE):
            session.client.destroy_cache(name)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working directory. `ignite-tf` there completes as the real one does, but otherwise only notes its arguments."""
    bin_directory, work = tmp_path / "bin", tmp_path / "work"
    bin_directory.mkdir()
    work.mkdir()
    program = bin_directory / "ignite-tf"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = completion ]; then exec {sys.executable} -m ignite_tf_magic "$@"; fi\n'
        f'printf "%s\\0" "$@" > "{tmp_path}/told.part" && mv "{tmp_path}/told.part" "{tmp_path}/told"\n'
    )
    program.chmod(0o755)
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("PATH", f"{bin_directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize(
    "shell", [pytest.param(each, marks=() if each == "bash" else pytest.mark.nightly) for each in COMMANDS]
)
def test_a_name_that_is_completed_is_one_word_and_runs_nothing(hostile_caches, work, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    told = work.parent / "told"
    if shell != "fish":  # fish would offer files, too
        (work / "HDfile").touch()
    terminal = Terminal(COMMANDS[shell])
    try:
        for line in (*LINES[shell], "ignite-tf ready"):
            terminal.type(f"{line}\r")
        until(lambda: terminal.read() is not None and told.exists(), what=terminal.read)
        for name in NAMES:
            told.unlink()
            terminal.type(f"ignite-tf start {name[:2]}\t\r")
            until(lambda: terminal.read() is not None and told.exists(), what=terminal.read)
            assert told.read_bytes().split(b"\0")[:-1] == [b"start", name.encode()], terminal.read().decode()
            assert not (work / HIT).exists(), name
        for name in UNSPEAKABLE:
            told.unlink()
            terminal.type(f"ignite-tf start {name[:2]}\t\r")
            until(lambda: terminal.read() is not None and told.exists(), what=terminal.read)
            assert b"titled" not in terminal.read(), name
            assert not (work / HIT).exists(), name
    finally:
        terminal.close()
