"""A user of a bed's cluster, with a configuration, data, and a shell on another machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ignite_tf_magic.protocol.affinity import hashes_of_integers, partitions_of_hashes
from ignite_tf_magic.session import open_session
from tests.bed.bed import Bed, Host
from tests.waiting import until

NUM_ROWS = 3000
CACHE = "NUMBERS"
USER, PASSWORD = "reader-4711", "pa55-w0rd-of-the-cluster"  # used by the fixture `trusted`


def load_numbers(bed: Bed) -> None:
    """Create a cache with the same number of rows on every node, and a backup of each row."""
    with open_session(bed.connect_options, report=print) as session:
        session.load(CACHE, {"x": np.arange(3)}, backups=1, replace=True)
        primary = session.client.cache(CACHE).partition_map().primary_of()
        keys = np.arange(2 * NUM_ROWS)
        partitions = partitions_of_hashes(hashes_of_integers(keys), len(primary))
        by_node: dict[Any, list[int]] = {}
        for key, partition in zip(keys, partitions, strict=True):
            by_node.setdefault(primary[int(partition)], []).append(int(key))
        chosen = np.array(sorted(key for keys in by_node.values() for key in keys[: NUM_ROWS // 3]))
        session.load(CACHE, {"k": chosen, "x": chosen}, key="k", backups=1, replace=True)


def settings(bed: Bed, *, without: str = "", **tables: dict[str, Any]) -> str:
    """Return an ignite-tf.toml for the bed. `tables` change its tables; a host's name stands for its table.

    A key with the value None is omitted, and so is the table named by `without`.
    """
    found: dict[str, dict[str, Any]] = {
        "cluster": {"addresses": [str(endpoint) for endpoint in bed.connect_options.endpoints]},
        "ssh": {"config": str(bed.ssh_config)},
        "launch": {"python": sys.executable},
        **{f"hosts.{host.name}": {"addresses": [host.address], "ssh": host.ssh_name} for host in bed.hosts},
    }
    for name, changes in tables.items():
        table = f"hosts.{name}" if f"hosts.{name}" in found else name
        found[table] = {**found[table], **changes}
    found.pop(without, None)
    lines = []
    for name, table in found.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    return "\n".join([*lines, ""])


class Command:
    """A running `ignite-tf` command. Its output goes to files, which tests can read while it runs."""

    def __init__(self, arguments: tuple[str, ...], directory: Path, env: dict[str, str]):
        self.argv = [sys.executable, "-m", "ignite_tf_magic", *arguments]
        self._paths = [directory / f"{time.monotonic_ns()}.{name}" for name in ("out", "err")]
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self.process = subprocess.Popen(self.argv, cwd=directory, env=env, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._paths[0].read_text()

    @property
    def err(self) -> str:
        return self._paths[1].read_text()

    def until(self, text: str) -> None:
        """Wait until the command has printed a text."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None
            found = text in self.out
            assert found or not has_ended, (self.argv, self.out, self.err)
            return found

        until(is_there, what=lambda: f"{text!r} of {self.argv}: {self.out[-1000:]} {self.err}")

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self, timeout_s: float = 180) -> int:
        """Wait for the command to exit; return its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError((self.argv, self.out[-1000:], self.err)) from None

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


class Shell:
    """Another machine of the same user, simulated by a separate state directory."""

    def __init__(self, directory: Path, bed: Bed):
        directory.mkdir()
        (directory / "ignite-tf.toml").write_text(settings(bed))
        self.directory = directory
        self.env = {**os.environ, "IGNITE_TF_HOME": str(directory / "home")}

    def configure(self, bed: Bed, **tables: Any) -> None:
        """Write a changed configuration; see `settings`."""
        (self.directory / "ignite-tf.toml").write_text(settings(bed, **tables))

    def start(self, *arguments: str) -> Command:
        return Command(arguments, self.directory, self.env)

    def __call__(self, *arguments: str, code: int = 0) -> Command:
        with self.start(*arguments) as command:
            assert command.end() == code, (command.argv, command.out, command.err)
        return command

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).out)


def left_on(host: Host) -> list[Any]:
    """Return the processes of this package on a host."""
    return [process for process in host.processes() if "ignite" in " ".join(process.argv) or process.marker]


# Prints numbered lines until it receives SIGTERM, and then the number of lines.
COUNT = """
import itertools, os, signal, sys, time
goes_on = True
def end(*_):
    global goes_on
    goes_on = False
signal.signal(signal.SIGTERM, end)
for number in itertools.count():
    print(f"line {number}", flush=True)
    if not goes_on:
        break
    time.sleep(0.01)
print(f"{number + 1} lines", flush=True)
"""


def check_lines(text: str, *, ended: bool = True) -> int:
    """Assert that COUNT's output is complete from its beginning: no line is lost or doubled."""
    lines = text.splitlines()
    num_lines = len(lines) - ended
    assert lines[:num_lines] == [f"line {number}" for number in range(num_lines)]
    assert not ended or lines[-1] == f"{num_lines} lines"
    assert num_lines > 0
    return num_lines


def check_lines_so_far(text: str) -> int:
    """Like `check_lines`, for a worker that may have ended or may be in the middle of a line."""
    whole = text.rpartition("\n")[0] + "\n"
    return check_lines(whole, ended=whole.endswith(" lines\n"))


def by_worker(text: str) -> dict[int, str]:
    """Split the output of `attach` by worker."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        worker, mark, rest = line.removeprefix("worker ").partition(" | ")
        assert mark, f"a line of no worker: {line!r}"
        found[int(worker)] = found.get(int(worker), "") + f"{rest}\n"
    return found


def changed_ssh_config(bed: Bed, directory: Path, **changes: dict[Path, Path]) -> str:
    """Copy the bed's ssh configuration and replace file paths of some hosts; return the copy's path."""
    entries = []
    for entry in bed.ssh_config.read_text().split("Host ")[1:]:
        for old, new in changes.get(entry.split()[0], {}).items():
            assert str(old) in entry
            entry = entry.replace(f'"{old}"', f'"{new}"')
        entries.append(f"Host {entry}")
    path = directory / f"ssh_config-{time.monotonic_ns()}"
    path.write_text("".join(entries))
    return str(path)


@contextmanager
def another_tensorflow(host: Host) -> Iterator[str]:
    """Yield the path of an interpreter on a host that pretends to have TensorFlow 2.15.0."""
    folder = host.disk / "other"
    (folder / "tensorflow-2.15.0.dist-info").mkdir(parents=True)
    (folder / "tensorflow-2.15.0.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 2.15.0\n")
    (folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH=~/other exec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    try:
        yield "~/other/python"
    finally:
        shutil.rmtree(folder)


@contextmanager
def late_reconciler(host: Host, seconds: int) -> Iterator[str]:
    """Yield the path of an interpreter on a host that starts the reconciler of detached runs only after a delay."""
    path = host.disk / "late-python"
    words = f'case "$*" in *supervision.reconciler*) sleep {seconds};; esac'
    path.write_text(f'#!/bin/sh\n{words}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    try:
        yield "~/late-python"
    finally:
        path.unlink()


def known_hosts_without(bed: Bed, name: str, directory: Path, *, is_changed: bool = False) -> Path:
    """Copy the known_hosts file without one host, or with another host's key for it; return the copy's path."""
    addresses = {host.name: host.address for host in bed.hosts}
    keys = dict(line.split(" ", 1) for line in bed.known_hosts.read_text().splitlines())
    place = next(each for each in keys if addresses[name] in each)
    own = keys.pop(place)
    if is_changed:
        keys[place] = next(key for key in keys.values() if key != own)
    path = directory / f"known_hosts-{name}"
    path.write_text("".join(f"{place} {key}\n" for place, key in keys.items()))
    return path
