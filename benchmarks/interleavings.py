"""`python -m benchmarks.interleavings [--seeds N]`: igfs clients take turns in random order while answers are lost.

Three clients and a sweeper on real nodes run one at a time. Whenever one sends a relevant request, a random number
chooses who runs next, and whether the request or its answer is lost or an error is raised, before or after the change.
Then all files are read: acknowledged content must be there once, in order, and whole. A seed always gives the same
story.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as DiskPath
from types import SimpleNamespace
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.transaction import Transaction
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import (
    ConnectionFailed,
    ConnectionLost,
    IgfsError,
    IgniteTfError,
    OutcomeUnknown,
    PathExists,
    PathNotFound,
    ServerError,
    StaleFile,
)
from ignite_tf_magic.igfs import journal
from ignite_tf_magic.igfs import store as igfs_store
from ignite_tf_magic.igfs.fsck import FsckReport, fsck
from ignite_tf_magic.igfs.layout import DirectoryNode
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, OpenMode
from ignite_tf_magic.settings.options import ConnectOptions

NAME = "interleavings"
NUM_CLIENTS = 3
ROOMS = ("igfs", "client")
BLOCK_BYTES = 16 * 1024
_SIZES = (10, 500, 5000, 5000, 40_000)
_CHANCE_OF_A_FAULT = 0.25
_CHANCE_OF_A_FAILED_READ = 0.02
_UNCERTAIN = (ConnectionFailed, ConnectionLost, ServerError)
_SWEPT = 1000
_RENEWALS_TO_WAIT = 2  # before the sweep of garbage that others might read
_TRIES = 20
_DIGEST_BYTES = 8
_HEAD = struct.Struct("<iii")


class Wrong(Exception):
    """Bytes are doubled, lost or torn."""


class Turns:
    """Lets one of several threads run at a time, chosen by a random number."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0
        """How many turns there were: the clock of a story."""
        self._changed = threading.Condition()
        self._numbers: dict[int, int] = {}
        self._live: list[int] = []
        self._turn = -1

    def run(self, programs: Sequence[Callable[[], None]]) -> list[BaseException]:
        """Run all programs to their ends. Returns the exceptions that they raised."""
        errors: list[BaseException] = []
        self._live = list(range(len(programs)))
        threads = [
            threading.Thread(target=self._run, args=(number, program, errors), daemon=True)
            for number, program in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        self._next()
        for thread in threads:
            thread.join()
        return errors

    def is_mine(self) -> bool:
        """Return whether the calling thread takes turns."""
        return threading.get_ident() in self._numbers

    def step(self) -> None:
        """Give other threads a turn. Returns when it is the caller's turn again."""
        number = self._numbers[threading.get_ident()]
        self._next()
        self._wait_for(number)

    def _run(self, number: int, program: Callable[[], None], errors: list[BaseException]) -> None:
        self._numbers[threading.get_ident()] = number
        self._wait_for(number)
        try:
            program()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)
        finally:
            del self._numbers[threading.get_ident()]
            self._live.remove(number)
            self._next()

    def _next(self) -> None:
        with self._changed:
            self.now += 1
            self._turn = self.rng.choice(self._live) if self._live else -1
            self._changed.notify_all()

    def _wait_for(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == number)


@contextmanager
def faults(turns: Turns) -> Iterator[Counter[str]]:
    """Let threads take turns at their requests, and lose requests and answers. Yields counts of the faults."""
    counts: Counter[str] = Counter()
    patched: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, new: Any) -> None:
        patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    pauses = SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: _pause(turns, s))
    try:
        patch(Transaction, "commit", _failing_change(turns, Transaction.commit, counts))
        for name in ("replace_if_equals", "put", "put_all", "remove", "remove_all"):
            patch(Cache, name, _failing_change(turns, getattr(Cache, name), counts))
        patch(Cache, "get_all", _failing_read(turns, Cache.get_all, counts))
        patch(Cache, "get", _failing_read(turns, Cache.get, counts))
        patch(igfs_store, "time", pauses)
        yield counts
    finally:
        for owner, name, old in patched:
            setattr(owner, name, old)


def _pause(turns: Turns, seconds: float) -> None:
    if turns.is_mine():
        turns.step()
    else:
        time.sleep(seconds)


def _failing_change(turns: Turns, call: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    def changing(owner: Any, *arguments: Any) -> Any:
        if not turns.is_mine():
            return call(owner, *arguments)
        if not _is_of_lease(arguments):  # its owner holds a lock during the call
            turns.step()
        if turns.rng.random() > _CHANCE_OF_A_FAULT:
            return call(owner, *arguments)
        kind = turns.rng.choice(["lost", "error"])
        when = turns.rng.choice(["before", "after", "after"])
        transaction = owner if isinstance(owner, Transaction) else owner.transaction
        if when == "after":
            call(owner, *arguments)
        elif transaction is not None:
            transaction.roll_back()
            when = "in a transaction"
        counts[f"{kind} {when}"] += 1
        if not _is_of_lease(arguments):
            turns.step()
        raise (
            ConnectionLost("here", "for this story")
            if kind == "lost"
            else ServerError(1, "for this story", "Failed to update keys (retry update if possible)")
        )

    return changing


def _is_of_lease(arguments: Sequence[Any]) -> bool:
    return isinstance(arguments[0], str) and arguments[0].startswith(journal.LEASE) if arguments else False


def _failing_read(turns: Turns, call: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    def reading(owner: Any, *arguments: Any) -> Any:
        if turns.is_mine():
            turns.step()
            if turns.rng.random() < _CHANCE_OF_A_FAILED_READ:
                counts["failed read"] += 1
                raise ConnectionFailed("no node answers, for this story")
        return call(owner, *arguments)

    return reading


# Clients write records with the writer's number and a checksum


def sealed(client: int, number: int, num_bytes: int) -> bytes:
    """Return a record."""
    body = _HEAD.pack(client, number, num_bytes) + random.Random(number).randbytes(num_bytes)
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def records_in(data: bytes, where: str) -> list[tuple[int, int]]:
    """Return the writers and numbers of records.

    Raises:
        Wrong: A record is torn.
    """
    return [record for record, _ in records_with_ends(data, where)]


def records_with_ends(data: bytes, where: str) -> list[tuple[tuple[int, int], int]]:
    """Return records, each with its end offset; see `records_in`."""
    found, position = [], 0
    while position < len(data):
        start = position + _DIGEST_BYTES
        head = data[start : start + _HEAD.size]
        client, number, num_bytes = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0)
        end = start + _HEAD.size + num_bytes
        digest = hashlib.blake2b(data[start:end], digest_size=_DIGEST_BYTES).digest()
        if end > len(data) or digest != data[position:start]:
            raise Wrong(f"{where}: torn at byte {position} of {len(data)}")
        found.append(((client, number), end))
        position = end
    return found


@dataclass
class Record:
    """A record from its writer's view: when the write began, and when it was acknowledged."""

    client: int
    number: int
    began: int
    acknowledged: int | None = None
    is_whole_file: bool = False


@dataclass
class Story:
    """The events of one seed, in a directory of its own."""

    seed: int
    volumes: Sequence[Volume]
    turns: Turns = field(init=False)
    written: list[Record] = field(default_factory=list)
    removes_trees: bool = False

    def __post_init__(self) -> None:
        self.turns = Turns(random.Random(self.seed))
        self.kind = self.turns.rng.choice(
            ["append", "append", "replace", "rotate", "cut", "directories", "trees"]
        )
        self.top: Path = (f"s{self.seed}",)

    def play(self) -> Counter[str]:
        """Play the story, and check the files.

        Raises:
            Wrong: Bytes are doubled, lost or torn.
        """
        self.volumes[0].make_directory(self.top)
        rng = self.turns.rng
        seeds = [rng.random() for _ in self.volumes]
        programs = [lambda n=n: self._client(n, random.Random(seeds[n])) for n in range(NUM_CLIENTS)]  # type: ignore[misc]
        with faults(self.turns) as counts:
            errors = self.turns.run([*programs, self._sweep])
        if errors:
            raise errors[0]
        self._check()
        return counts

    def _client(self, client: int, rng: random.Random) -> None:
        if self.kind == "directories":
            self._make_directories(client, rng)
            return
        if self.kind == "trees":
            self._make_trees(client, rng)
            return
        if client == NUM_CLIENTS - 1 and self.kind != "append":
            act = {"replace": self._replace, "rotate": self._rotate, "cut": self._cut}[self.kind]
            for number in range(rng.choice([1, 2, 3])):
                act(client, number, rng)
            return
        self._append(client, rng)

    def _append(self, client: int, rng: random.Random) -> None:
        path, number = (*self.top, "log"), 0
        for _ in range(rng.choice([1, 2])):
            writer: FileWriter | None = None
            for _ in range(rng.choice([1, 2, 3, 4])):
                record = Record(client, number, self.turns.now)
                data = sealed(client, number, rng.choice(_SIZES))
                self.written.append(record)
                number += 1
                writer = self._add(client, path, writer, data, record)
            if writer is not None:
                with suppress(*_UNCERTAIN):  # all is flushed; others sweep the rest
                    writer.close()

    def _add(
        self, client: int, path: Path, writer: FileWriter | None, data: bytes, record: Record
    ) -> FileWriter | None:
        """Append one record and flush. Returns the writer, or None if the file must be reopened."""
        for _ in range(_TRIES):
            writer = writer or self._asked(lambda: self.volumes[client].open_write(path, OpenMode.APPEND))
            try:
                writer.write(data)
                self._asked(writer.flush)
            except StaleFile:  # it was replaced or moved: not written
                _give_up(writer)
                writer = None
                continue
            except (OutcomeUnknown, *_UNCERTAIN):  # not acknowledged
                _give_up(writer)
                return None
            record.acknowledged = self.turns.now
            return writer
        raise AssertionError("the file was replaced again and again")

    def _replace(self, client: int, number: int, rng: random.Random) -> None:
        record = Record(client, number, self.turns.now, is_whole_file=True)
        self.written.append(record)
        data = sealed(client, number, rng.choice(_SIZES))
        with suppress(OutcomeUnknown):  # another client has replaced it since
            self._asked(lambda: self.volumes[client].write_file((*self.top, "log"), data))
        record.acknowledged = self.turns.now

    def _rotate(self, client: int, number: int, _: random.Random) -> None:
        with suppress(PathNotFound):
            self._asked(lambda: self.volumes[client].rename((*self.top, "log"), (*self.top, f"log.{number}")))

    def _cut(self, client: int, number: int, rng: random.Random) -> None:
        """Keep some of the first records. Earlier records may then be gone, later ones may not."""
        record = Record(client, number, self.turns.now, is_whole_file=True)
        path = (*self.top, "log")
        with suppress(PathNotFound, StaleFile):
            data = self._asked(lambda: read(self.volumes[client], path))
            ends = [end for _, end in records_with_ends(data, "before a cut")]
            self.written.append(record)
            self._asked(lambda: self.volumes[client].truncate(path, rng.choice([0, *ends])))
        record.acknowledged = self.turns.now

    def _make_directories(self, client: int, rng: random.Random) -> None:
        volume = self.volumes[client]
        for number in range(3):
            with suppress(PathExists):
                self._asked(lambda: volume.make_directory((*self.top, "d")))
            with suppress(PathNotFound, IgfsError):
                self._asked(
                    lambda number=number: volume.rename((*self.top, "d"), (*self.top, f"d.{client}.{number}"))
                )
            if rng.random() < 0.3:
                with suppress(PathNotFound, IgfsError):
                    self._asked(lambda: volume.remove_directory((*self.top, "d")))

    def _make_trees(self, client: int, rng: random.Random) -> None:
        """Write files into a directory that others move, or remove with its content."""
        volume, tree = self.volumes[client], (*self.top, "d")
        for number in range(3):
            record = Record(client, number, self.turns.now)
            data = sealed(client, number, rng.choice(_SIZES))
            with suppress(PathExists):
                self._asked(lambda: volume.make_directory(tree))
            with suppress(PathNotFound, OutcomeUnknown):
                path = (*tree, f"f.{client}.{number}")
                self._asked(lambda path=path, data=data: volume.write_file(path, data))
                self.written.append(record)
                record.acknowledged = self.turns.now
            with suppress(PathNotFound, IgfsError):
                if rng.random() < 0.3:
                    self.removes_trees = True
                    self._asked(lambda: volume.remove_directory(tree, with_contents=True))
                elif rng.random() < 0.3:
                    moved = (*self.top, f"d.{client}.{number}")
                    self._asked(lambda moved=moved: volume.rename(tree, moved))

    def _sweep(self) -> None:
        """Sweep garbage between and during the clients' operations."""
        for _ in range(3):
            with suppress(IgniteTfError):
                self.volumes[-1].sweep(_SWEPT)
            for _ in range(_RENEWALS_TO_WAIT):
                for volume in self.volumes:
                    with suppress(IgniteTfError):
                        _renew(volume)
            self.turns.step()

    def _asked(self, call: Callable[[], Any]) -> Any:
        """Call, and retry if no node could be reached."""
        for _ in range(_TRIES):
            with suppress(*_UNCERTAIN):
                return call()
        raise AssertionError("it fails again and again")

    def _check(self) -> None:
        contents: dict[Path, list[tuple[int, int]]] = {}
        ids: Counter[int] = Counter()
        waiting = [self.top]
        for above in waiting:
            for page in self.volumes[0].entries(above):
                for name, node in page:
                    path = (*above, name)
                    if isinstance(node, DirectoryNode):
                        ids[node.id] += 1
                        waiting.append(path)
                    else:
                        contents[path] = records_in(read(self.volumes[0], path), f"seed {self.seed}, {name}")
        if any(count > 1 for count in ids.values()):
            raise Wrong(f"seed {self.seed} ({self.kind}): one directory has two names")
        there = Counter(record for records in contents.values() for record in records)
        self._say("doubled", [record for record, count in there.items() if count > 1])
        last = max(
            (record.began for record in self._whole_files() if (record.client, record.number) in there),
            default=-1,
        )
        # Records begun after the last acknowledged replacement must be there; without a replacement, all must.
        end = max((record.acknowledged or 0 for record in self._whole_files()), default=-1)
        wanted = [
            (r.client, r.number)
            for r in self.written
            if r.acknowledged is not None and not r.is_whole_file and r.began > max(last, end)
        ]
        if not self.removes_trees:
            self._say("lost", [record for record in wanted if record not in there])
        for path, records in contents.items():
            for client in range(NUM_CLIENTS):
                numbers = [number for writer, number in records if writer == client]
                if numbers != sorted(numbers):
                    raise Wrong(
                        f"seed {self.seed} ({self.kind}): {render(path)} has records of {client} as {numbers}"
                    )

    def _whole_files(self) -> list[Record]:
        return [record for record in self.written if record.is_whole_file]

    def _say(self, what: str, records: Sequence[tuple[int, int]]) -> None:
        if records:
            raise Wrong(
                f"seed {self.seed} ({self.kind}): {what}: {records} (client, number) in {render(self.top)}"
            )


def _renew(volume: Volume) -> None:
    """Renew a lease at once, which a client does every four seconds."""
    leases = volume._leases
    with leases._wake:
        if leases.has_lease:
            leases._renew()


def _give_up(writer: FileWriter) -> None:
    with suppress(IgniteTfError):  # others sweep what is left
        writer.discard()


def read(volume: Volume, path: Path) -> bytes:
    """Read a whole file."""
    with volume.open_read(path) as reader:
        data = bytearray(reader.node.size)
        if reader.read_into(0, memoryview(data)) != len(data):
            raise Wrong(f"{render(path)}: fewer bytes than its size")
    return bytes(data)


@dataclass
class Outcome:
    """The outcome of many seeds."""

    num_seeds: int = 0
    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    report: FsckReport | None = None


def play(
    options: Callable[[], ConnectOptions], seeds: Sequence[int], say: Callable[[str], None], name: str = NAME
) -> Outcome:
    """Play stories on a cluster. Directories of successful stories are removed."""
    outcome = Outcome()
    with ExitStack() as opened:
        volumes = [
            opened.enter_context(Volume(options, name, create=True, block_bytes=BLOCK_BYTES))
            for _ in range(NUM_CLIENTS)
        ]
        for seed in seeds:
            story = Story(seed, volumes)
            outcome.num_seeds += 1
            try:
                outcome.faults += story.play()
                volumes[0].remove_directory(story.top, with_contents=True)
            except (Wrong, AssertionError, OSError) as error:
                outcome.problems.append(f"{type(error).__name__}: {error} (seed {seed}, {story.kind})")
                say(outcome.problems[-1])
            if outcome.num_seeds % 50 == 0:
                say(f"{outcome.num_seeds} of {len(seeds)} seeds, {len(outcome.problems)} wrong")
        outcome.report = fsck(volumes[0])
    return outcome


def main(argv: Sequence[str] | None = None) -> None:
    """Play 1,000 seeds, and write the outcome."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interleavings", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--results", type=DiskPath, default=tables.RESULTS, metavar="DIR")
    arguments = parser.parse_args(argv)
    code = hash_of_rooms(rooms=ROOMS)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with tempfile.TemporaryDirectory(prefix="interleavings-") as folder:
        home = DiskPath(folder) / "embedded"
        try:
            cluster = ensure_up(EmbeddedOptions(heap="256m"), Lifetime.UNTIL_IDLE, print, home).cluster
            outcome = play(lambda: cluster.connect_options, seeds, _say)
        finally:
            down(home, delete_data=True)
    clean = outcome.report is not None and outcome.report.is_clean
    row = {"case": "three clients", "seeds": outcome.num_seeds, "wrong": len(outcome.problems)}
    rows = [
        {
            **row,
            **{kind: outcome.faults[kind] for kind in sorted(outcome.faults)},
            "fsck_clean": clean,
            "code_hash": code,
        }
    ]
    tables.write(arguments.results, "interleavings", rows)
    _say(json.dumps(rows, indent=1))
    if outcome.problems or not clean:
        raise SystemExit("bytes were doubled, lost or torn, or something is left; see above")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
