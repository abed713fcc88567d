"""`python -m benchmarks.crash [--quick]`: kills writers and nodes during writes to igfs, and checks the files.

A writer makes one change to a directory: it replaces a file, appends to one with flushes, or writes a checkpoint as
TensorFlow does. It kills itself with SIGKILL when it sends one of its requests: a request before the one that
commits ("before"), or the committing one ("during"), of which it sends all, half, or only the first bytes.
Then another client checks: each file must be the old or the new one, and each flush that returned must be there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as DiskPath
from typing import Any

from benchmarks import tables
from ignite_tf_magic.client.transport import SocketTransport
from ignite_tf_magic.embedded import EmbeddedCluster, EmbeddedOptions, Lifetime, down, ensure_up, status
from ignite_tf_magic.igfs.fsck import FsckReport, fsck
from ignite_tf_magic.igfs.paths import Path
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import OpenMode
from ignite_tf_magic.protocol.ops import Operation
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

NAME = "crash"
BLOCK_BYTES = 64 * 1024
KINDS = ("replace", "append", "checkpoint")
_COMMITS = (Operation.TX_END, Operation.CACHE_REPLACE_IF_EQUALS)
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<qq")
_ROOT = DiskPath(__file__).parent.parent


class Torn(Exception):
    """A file is neither the old nor the new one, or a flush that returned is missing."""


def sealed(number: int, num_bytes: int) -> bytes:
    """Return content with a number and a checksum."""
    body = _HEAD.pack(number, num_bytes) + random.randbytes(num_bytes)
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def numbers_in(data: bytes) -> list[int]:
    """Return the numbers in a sequence of `sealed` contents.

    Raises:
        Torn: A part is cut or damaged.
    """
    numbers, position = [], 0
    while position < len(data):
        start = position + _DIGEST_BYTES
        head = data[start : start + _HEAD.size]
        number, num_bytes = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
        end = start + _HEAD.size + num_bytes
        digest = hashlib.blake2b(data[start:end], digest_size=_DIGEST_BYTES).digest()
        if end > len(data) or digest != data[position:start]:
            raise Torn(f"{len(data)} bytes are damaged at {position}")
        numbers.append(number)
        position = end
    return numbers


def read(volume: Volume, path: Path) -> bytes:
    """Read a whole file."""
    with volume.open_read(path) as reader:
        data = bytearray(reader.node.size)
        if reader.read_into(0, memoryview(data)) != len(data):
            raise Torn(f"{path}: fewer bytes than its size")
    return bytes(data)


# The writer's side


class Trigger:
    """Kills this process when it sends its n-th request, or its n-th committing request."""

    def __init__(self, part: float) -> None:
        self._part = part
        self._send = SocketTransport.send
        self.sent = self.commits = 0
        self.before_commits: list[int] = []
        self.at_request = self.at_commit = -1

    def install(self) -> None:
        """Count everything that this process sends."""
        trigger = self

        def send(transport: SocketTransport, data: bytes | memoryview) -> None:
            trigger.note(transport, data)
            trigger._send(transport, data)

        SocketTransport.send = send  # type: ignore[method-assign]

    def start(self, at_request: int = -1, at_commit: int = -1) -> None:
        """Restart the counts."""
        self.sent = self.commits = 0
        self.before_commits = []
        self.at_request, self.at_commit = at_request, at_commit

    def note(self, transport: SocketTransport, data: bytes | memoryview) -> None:
        """Count a request, and kill the process when its time has come."""
        is_commit = len(data) >= 6 and struct.unpack_from("<h", data, 4)[0] in _COMMITS
        if is_commit:
            self.before_commits.append(self.sent)
        if self.sent == self.at_request or (is_commit and self.commits == self.at_commit):
            self._send(transport, memoryview(data)[: int(len(data) * self._part)])
            os.kill(os.getpid(), signal.SIGKILL)
        self.sent += 1
        self.commits += is_commit


def change(volume: Volume, where: Path, kind: str, number: int, sizes: Sequence[int]) -> None:
    """Make the change of one round, and print what is safely written."""
    if kind == "replace":
        volume.write_file((*where, "state"), sealed(number, sizes[0]))
    elif kind == "append":
        with volume.open_write((*where, "log"), OpenMode.APPEND) as writer:
            for size in sizes:
                writer.write(sealed(number, size))
                writer.flush()
                print("flushed", flush=True)
    else:
        for name in ("data", "index"):
            volume.write_file((*where, f"ckpt-{number}.{name}"), sealed(number, sizes[0]))
        volume.write_file((*where, "checkpoint.tmp"), sealed(number, 50))
        volume.rename((*where, "checkpoint.tmp"), (*where, "checkpoint"))
    print("done", flush=True)


def write_and_die(task: dict[str, Any]) -> None:
    """Run the writer's process."""
    endpoint, rng = Endpoint(*task["endpoint"]), random.Random(task["seed"])
    kind, sizes = task["kind"], task["sizes"]
    trigger = Trigger(rng.choice([0.0, 0.01, 0.5, 1.0]))
    trigger.install()
    with Volume(
        lambda: ConnectOptions((endpoint,)), task["name"], create=True, block_bytes=BLOCK_BYTES
    ) as volume:
        scratch = (f"scratch{os.getpid()}",)
        volume.make_directory(scratch)
        for name in ("state", "log", "checkpoint"):
            with suppress(FileNotFoundError):
                volume.copy((name,), (*scratch, name))
        trigger.start()
        change(volume, scratch, kind, task["number"], sizes)
        commits = trigger.before_commits or [trigger.sent]
        if task["phase"] == "during" or (task["phase"] == "either" and rng.random() < 0.5):
            trigger.start(at_commit=rng.randrange(len(commits)))
        else:
            last = rng.choice(commits)
            trigger.start(at_request=rng.randrange(max(last, 1)))
        print("begun", flush=True)
        change(volume, (), kind, task["number"], sizes)


# The campaign's side


@dataclass
class Known:
    """The content that must be there.

    Attributes:
        state: Number in the state file.
        log: Numbers in the log.
        checkpoint: Number of the latest checkpoint.
        late: Round whose last request was sent: a node may carry it out after the next check.
    """

    state: int = 0
    log: list[int] = field(default_factory=list)
    checkpoint: int = 0
    late: int = 0


def begin(volume: Volume) -> Known:
    """Write the initial files."""
    volume.write_file(("state",), sealed(0, 100))
    volume.write_file(("log",), b"")
    for name in ("ckpt-0.data", "ckpt-0.index", "checkpoint"):
        volume.write_file((name,), sealed(0, 10))
    return Known()


def check(volume: Volume, known: Known, number: int, num_flushed: int, finished: bool) -> None:
    """Check all files, and update `known`.

    Args:
        volume: Another client than the writer's.
        known: The content before the round.
        number: The round's number.
        num_flushed: The number of flushes of this round that returned.
        finished: Whether the whole round was completed.

    Raises:
        Torn: Something is neither old nor new, or lost.
    """
    states = numbers_in(read(volume, ("state",)))
    if states not in ([known.state], [known.late], [number]):
        raise Torn(f"the state file holds {states}, not {known.state} or {number}")
    log = numbers_in(read(volume, ("log",)))
    new = log[len(known.log) :]
    new = new[1:] if new[:1] == [known.late] else new
    if (
        log[: len(known.log)] != known.log
        or set(new) - {number}
        or len(new) not in (num_flushed, num_flushed + 1)
    ):
        raise Torn(f"the log ends with {log[-5:]} after {num_flushed} flushes in round {number}")
    (checkpoint,) = numbers_in(read(volume, ("checkpoint",)))
    if checkpoint not in (known.checkpoint, known.late, number):
        raise Torn(f"checkpoint {checkpoint} is neither old nor new")
    for name in ("data", "index"):
        if numbers_in(read(volume, (f"ckpt-{checkpoint}.{name}",))) != [checkpoint]:
            raise Torn(f"checkpoint {checkpoint} is listed and does not load")
    if finished and number not in (states[0], checkpoint, *new):
        raise Torn(f"round {number} was done, and nothing of it is there")
    known.state, known.log, known.checkpoint, known.late = states[0], log, checkpoint, number


def kill_writers(
    options: ConnectOptions, phase: str, rounds: int, report: Callable[[str], None], name: str = NAME
) -> dict[str, Any]:
    """Kill a writer in each round, "before" a commit, "during" it, or "either". Returns the row of results."""
    rng = random.Random(phase)
    whole, survived, problems = 0, 0, []
    endpoint = options.endpoints[0]
    with Volume(lambda: options, name, create=True, block_bytes=BLOCK_BYTES) as volume:
        known = begin(volume)
        for number in range(1, rounds + 1):
            task = {
                "name": name,
                "endpoint": [endpoint.host, endpoint.port],
                "seed": rng.random(),
                "kind": KINDS[number % len(KINDS)],
                "phase": phase,
                "number": number,
                "sizes": [rng.choice([0, 100, 5000, 70_000, 200_000, 700_000]) for _ in range(4)],
            }
            lines, code = _run_writer(task)
            if code not in (0, -signal.SIGKILL):
                raise RuntimeError(f"the writer ended with {code}: {lines}")
            after = lines[lines.index("begun") + 1 :]
            survived += code == 0
            try:
                check(volume, known, number, after.count("flushed"), "done" in after)
                whole += 1
            except (Torn, OSError) as error:
                problems.append(f"round {number}, {task['kind']}: {error}")
                known = begin(volume)
            if number % 10 == 0:
                found = fsck(volume)
                problems += [f"round {number}: {problem}" for problem in found.problems]
                report(f"{phase}: {number} of {rounds} rounds, {whole} whole, {survived} writers lived")
        end = settled(volume)
    problems += end.problems
    for problem in problems:
        report(problem)
    return _row(f"writer killed {phase} the commit", rounds - survived, whole - survived, problems, end)


def _run_writer(task: dict[str, Any]) -> tuple[list[str], int]:
    argv = [sys.executable, "-m", "benchmarks.crash", "--write", json.dumps(task)]
    done = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    if "begun" not in lines:
        raise RuntimeError(f"the writer did not begin: {done.stderr[-2000:]}")
    return lines, done.returncode


def settled(volume: Volume, timeout_s: float = 90.0) -> FsckReport:
    """Wait until garbage of dead writers is swept, and run fsck, which also counts superfluous blocks and rows."""
    for page in volume.entries(()):
        for name, _ in page:
            if name.startswith("scratch"):
                volume.remove_directory((name,), with_contents=True)
    deadline = time.monotonic() + timeout_s
    while volume.sweep(100_000) and time.monotonic() < deadline:
        time.sleep(0.5)
    return fsck(volume)


def _row(case: str, rounds: int, whole: int, problems: Sequence[str], end: FsckReport) -> dict[str, Any]:
    return {
        "case": case,
        "rounds": rounds,
        "whole": whole,
        "torn": rounds - whole,
        "fsck_clean": end.is_clean and end.num_waiting == 0 and not problems,
    }


class Traffic:
    """Writers and readers that keep running while nodes die."""

    def __init__(self, options: Callable[[], ConnectOptions]) -> None:
        self._options = options
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(call,))
            for call in (self._replace, self._append, self._watch)
        ]
        self.errors: list[BaseException] = []
        self.state = 0
        self.flushed = 0
        self.reads = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write and read until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def check(self, volume: Volume) -> None:
        """Check that all acknowledged content is there. Safe during the traffic.

        Raises:
            Torn: Content is lost or damaged.
        """
        if self.errors:
            raise self.errors[0]
        flushed, state = self.flushed, self.state
        log = numbers_in(read(volume, ("log",)))
        if log != list(range(1, len(log) + 1)) or len(log) < flushed:
            raise Torn(f"the log has {len(log)} records, {flushed} were flushed")
        (found,) = numbers_in(read(volume, ("state",)))
        if found < state:
            raise Torn(f"the state file holds {found}, {state} was written")

    def _run(self, call: Callable[[Volume], None]) -> None:
        with Volume(self._options, NAME, create=True, block_bytes=BLOCK_BYTES) as volume:
            while not self._stop.is_set() and not self.errors:
                try:
                    call(volume)
                except BaseException as error:  # noqa: BLE001 - raised by `check`
                    self.errors.append(error)

    def _replace(self, volume: Volume) -> None:
        number = self.state + 1
        volume.write_file(("state",), sealed(number, random.choice([10, 5000, 100_000, 300_000])))
        self.state = number

    def _append(self, volume: Volume) -> None:
        with volume.open_write(("log",), OpenMode.APPEND) as writer:
            for _ in range(20):
                writer.write(sealed(self.flushed + 1, random.choice([10, 500, 5000, 70_000])))
                writer.flush()
                self.flushed += 1
                if self._stop.is_set():
                    return

    def _watch(self, volume: Volume) -> None:
        state = self.state
        (number,) = numbers_in(read(volume, ("state",)))
        if number < state:
            raise Torn(f"a reader found state {number} after {state} was written")
        numbers_in(read(volume, ("log",)))
        self.reads += 1
        time.sleep(0.05)


def kill_nodes(cluster: EmbeddedCluster, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Kill a node and restart it in each round, while files are written. Returns the row of results."""
    rng = random.Random("nodes")
    home, problems, whole = cluster.home, [], 0

    def options() -> ConnectOptions:
        found = status(home)
        return found.connect_options if found else cluster.connect_options

    with Volume(options, NAME, create=True, block_bytes=BLOCK_BYTES) as volume:
        begin(volume)
        traffic = Traffic(options)
        with traffic.running():
            for number in range(1, rounds + 1):
                time.sleep(rng.uniform(0.2, 2.0))
                found = status(home)
                victim = rng.choice([node for node in found.nodes if node.alive]) if found else None
                if victim is None or victim.pid is None:
                    raise RuntimeError("the nodes have ended")
                os.kill(victim.pid, signal.SIGKILL)
                began = time.monotonic()
                while (now := status(home)) is not None and now.nodes[victim.index].alive:
                    time.sleep(0.01)
                before = traffic.flushed, traffic.state
                with suppress(TimeoutError):
                    _wait_for_progress(traffic, before)
                gap_s = time.monotonic() - began
                ensure_up(None, Lifetime.UNTIL_IDLE, home=home)
                try:
                    traffic.check(volume)
                    whole += 1
                except (Torn, OSError) as error:
                    problems.append(f"round {number}: {type(error).__name__}: {error}")
                    break
                report(
                    f"nodes: {number} of {rounds} killed, {traffic.state} replaced, {traffic.flushed} flushed, "
                    f"{traffic.reads} read; wrote again {gap_s:.1f} s after the kill"
                )
        with suppress(IndexError):
            problems.append(f"at the end: {traffic.errors[0]!r}")
        end = settled(volume)
    problems += end.problems
    for problem in problems:
        report(problem)
    return _row("node killed during writes", rounds, whole, problems, end)


def _wait_for_progress(traffic: Traffic, before: tuple[int, int]) -> None:
    deadline = time.monotonic() + 60
    while traffic.flushed == before[0] or traffic.state == before[1]:
        if traffic.errors or time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the campaign and write its results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crash", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, only to see that everything runs")
    parser.add_argument("--results", type=DiskPath, default=tables.RESULTS, metavar="DIR")
    parser.add_argument("--write", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.write:
        write_and_die(arguments.write)
        return
    before, during, nodes = (6, 3, 1) if arguments.quick else (165, 24, 20)
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        home = DiskPath(folder) / "embedded"
        try:
            cluster = ensure_up(
                EmbeddedOptions(heap="256m", region="512m"), Lifetime.UNTIL_IDLE, print, home
            ).cluster
            rows = [
                kill_writers(cluster.connect_options, "before", before, _say),
                kill_writers(cluster.connect_options, "during", during, _say),
                kill_nodes(cluster, nodes, _say),
            ]
        finally:
            down(home, delete_data=True)
    tables.write(arguments.results, "crash", rows)
    _say(json.dumps(rows, indent=1))
    if any(row["torn"] or not row["fsck_clean"] for row in rows):
        raise SystemExit("something was torn or is left; see above")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
