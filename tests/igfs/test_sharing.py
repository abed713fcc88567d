"""Several clients at once: readers keep what they opened, writers lose nothing, one of many creators wins."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ignite_tf_magic.errors import (
    DeadlineExceeded,
    IgfsError,
    InvalidPath,
    PathExists,
    PathNotFound,
    StaleFile,
)
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.journal import LEASE
from ignite_tf_magic.igfs.writer import OpenMode
from tests.igfs.conftest import read_all, sweep_until_clean
from tests.waiting import until

BLOCK = 16_384


@pytest.fixture
def own_volume(new_volume, own_name):
    return new_volume(own_name, block_bytes=BLOCK)


@pytest.fixture
def other_volume(new_volume, own_name):
    """Another client of the same file system."""
    return new_volume(own_name, block_bytes=BLOCK)


def at_once(*calls):
    """Run calls in threads that start together. Returns what each returned or raised."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait()
        try:
            return call()
        except IgfsError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def kinds(outcomes):
    return Counter(type(outcome).__name__ for outcome in outcomes)


def read_from(reader, offset, num_bytes):
    space = bytearray(num_bytes)
    return bytes(space[: reader.read_into(offset, memoryview(space))])


def sweeps(volume, num_renewals=6):
    """Sweep until this client's lease has been renewed `num_renewals` times."""
    start = lease_counter(volume)

    def sweep() -> bool:
        volume.sweep(1000)
        return lease_counter(volume) >= start + num_renewals

    until(sweep, what=f"{num_renewals} renewals of the lease")


def lease_counter(volume):
    return max(r.counter for k, r in volume.collector.records().items() if k.startswith(LEASE))


@pytest.mark.parametrize("fate", ["replace", "remove", "remove_tree", "rename_over", "cut"])
def test_a_reader_keeps_what_it_opened(own_volume, other_volume, quick_leases, fate):
    old = os.urandom(200_000)
    own_volume.make_directory(("d",))
    own_volume.write_file(("d", "f"), old)
    with own_volume.open_read(("d", "f")) as reader:
        assert read_from(reader, 0, 10) == old[:10]
        {
            "replace": lambda: other_volume.write_file(("d", "f"), b"new" * 50_000),
            "remove": lambda: other_volume.remove_file(("d", "f")),
            "remove_tree": lambda: other_volume.remove_directory(("d",), with_contents=True),
            "rename_over": lambda: (
                other_volume.write_file(("g",), b"new"),
                other_volume.rename(("g",), ("d", "f")),
            ),
            "cut": lambda: other_volume.truncate(("d", "f"), 50_000),
        }[fate]()
        sweeps(other_volume if fate == "replace" else own_volume)
        assert read_from(reader, 0, 200_000) == old
        assert reader.node.size == 200_000
    sweep_until_clean(other_volume)
    left = 0 if fate.startswith("remove") or fate == "rename_over" else None
    if left is not None:
        assert own_volume.store.blocks.size() == left
    assert fsck(other_volume).is_clean


def test_a_reader_that_opens_while_others_replace_and_sweep_reads_whole(
    own_volume, new_volume, own_name, quick_leases
):
    """A new client has no lease yet when it looks the file up."""
    own_volume.write_file(("f",), b"0" * 40_000)
    done = threading.Event()

    def replace():
        with new_volume(own_name, block_bytes=BLOCK) as volume:
            number = 0
            while not done.is_set():
                number += 1
                volume.write_file(("f",), b"%d" % (number % 10) * 40_000)
                volume.collector._first_seen.clear()
                volume.sweep(1000)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(25):
            with new_volume(own_name, block_bytes=BLOCK) as volume:
                data = read_all(volume, ("f",))
                assert len(data) == 40_000
                assert len(set(data)) == 1, "torn"
    finally:
        done.set()
        thread.join()


def test_a_reader_sees_what_is_appended_and_finds_merged_pieces(own_volume, other_volume, quick_leases):
    """TensorBoard keeps one reader open on a growing event file."""
    content = os.urandom(6000)
    own_volume.write_file(("log",), content)
    with (
        other_volume.open_read(("log",)) as reader,
        own_volume.open_write(("log",), OpenMode.APPEND) as writer,
    ):
        read = b""
        for number in range(120):
            data = os.urandom(5000 if number % 3 else 50)
            content += data
            writer.write(data)
            assert read_from(reader, len(read), 100_000) == content[len(read) : -len(data)]
            read = content[: -len(data)]
            writer.flush()
            assert read_from(reader, len(read), 100_000) == data
            read = content
        before = reader.node
        sweeps(own_volume)
        assert len(own_volume.stat(("log",)).extents) < 40
        assert read_from(reader, 0, len(content)) == content
        assert before.version == reader.node.version
    sweep_until_clean(own_volume)
    assert own_volume.store.blocks.size() == sum(e.num_blocks for e in own_volume.stat(("log",)).extents)


def test_a_reader_behind_a_merge_finds_the_bytes_elsewhere(own_volume, other_volume, quick_leases):
    """The reader opened many pieces; they are merged and removed before it reads them."""
    content = b""
    with own_volume.open_write(("log",)) as writer:
        for number in range(2):
            content += bytes([number]) * 4500
            writer.write(bytes([number]) * 4500)
            writer.flush()
        with other_volume.open_read(("log",)) as reader:
            pieces = reader.node.extents
            for number in range(2, 8):
                content += bytes([number]) * 4500
                writer.write(bytes([number]) * 4500)
                writer.flush()
            sweeps(own_volume)
            keys = [key for extent in pieces for key in extent.block_keys()]
            assert not any(own_volume.store.blocks.contains(key) for key in keys), (
                "the pieces are still there"
            )
            assert read_from(reader, 0, 9000) == content[:9000]


def test_two_appenders_lose_nothing(own_volume, other_volume):
    def append(volume, letter):
        def run():
            with volume.open_write(("log",), OpenMode.APPEND) as writer:
                for number in range(40):
                    writer.write(f"{letter}{number:03d}\n".encode() * (1 if number % 4 else 1500))
                    writer.flush()

        return run

    assert kinds(at_once(append(own_volume, "a"), append(other_volume, "b"))) == {"NoneType": 2}
    lines = read_all(own_volume, ("log",)).decode().splitlines()
    for letter in "ab":
        mine = [line for line in lines if line[0] == letter]
        expected = [f"{letter}{n:03d}" for n in range(40) for _ in range(1 if n % 4 else 1500)]
        assert mine == expected
    sweep_until_clean(own_volume)
    assert fsck(own_volume).is_clean


def test_an_appender_that_was_idle_while_another_merged_goes_on(own_volume, other_volume, quick_leases):
    """The pieces that the idle appender would merge are gone."""
    with own_volume.open_write(("log",), OpenMode.APPEND) as idle:
        for _ in range(2):
            idle.write(b"1" * 5000)
            idle.flush()
        with other_volume.open_write(("log",), OpenMode.APPEND) as busy:
            for _ in range(6):
                busy.write(b"2" * 5000)
                busy.flush()
        sweeps(own_volume)
        idle.write(b"3" * 9000)
        idle.flush()
    assert read_all(own_volume, ("log",)) == b"1" * 10_000 + b"2" * 30_000 + b"3" * 9000


def test_one_of_four_creates(own_volume, other_volume):
    def create(volume, number):
        return lambda: volume.write_file(("f",), b"%d" % number * 5000, OpenMode.CREATE)

    for _ in range(5):
        outcomes = at_once(*(create([own_volume, other_volume][n % 2], n) for n in range(4)))
        assert kinds(outcomes) == {"NoneType": 1, "PathExists": 3}
        winner = next(n for n, outcome in enumerate(outcomes) if outcome is None)
        assert read_all(own_volume, ("f",)) == b"%d" % winner * 5000
        own_volume.remove_file(("f",))


def test_one_of_four_removes(own_volume, other_volume):
    own_volume.make_directory(("d",))
    for remove in ("remove_file", "remove_directory"):
        for _ in range(5):
            if remove == "remove_file":
                own_volume.write_file(("x",), b"")
            else:
                own_volume.make_directory(("x",))
            calls = [getattr(volume, remove) for volume in (own_volume, other_volume) * 2]
            outcomes = at_once(*(lambda call=call: call(("x",)) for call in calls))
            assert kinds(outcomes) == {"NoneType": 1, "PathNotFound": 3}


def test_one_of_four_moves(own_volume, other_volume):
    for _ in range(5):
        own_volume.write_file(("x",), b"1")
        outcomes = at_once(
            *(
                lambda volume=[own_volume, other_volume][n % 2], n=n: volume.rename(("x",), (f"y{n}",))
                for n in range(4)
            )
        )
        assert kinds(outcomes) == {"NoneType": 1, "PathNotFound": 3}
        (name,) = [name for page in own_volume.entries(()) for name, _ in page]
        assert outcomes[int(name[1:])] is None
        own_volume.remove_file((name,))


def test_directories_never_move_into_each_other(own_volume, other_volume):
    for number in range(6):
        top = f"t{number}"
        for name in "ab":
            own_volume.make_directory((top, name), parents=True)
        outcomes = at_once(
            lambda top=top: own_volume.rename((top, "a"), (top, "b", "a")),
            lambda top=top: other_volume.rename((top, "b"), (top, "a", "b")),
        )
        failed = [outcome for outcome in outcomes if outcome is not None]
        assert len(failed) == 1
        assert isinstance(failed[0], PathNotFound | InvalidPath)
    assert fsck(own_volume).problems == ()
    assert fsck(own_volume).num_directories == 18


def test_a_file_is_not_created_in_a_directory_that_is_removed(own_volume, other_volume):
    for number in range(6):
        own_volume.make_directory(("d",))
        outcomes = at_once(
            lambda: own_volume.write_file(("d", "f"), b"x"),
            lambda number=number: other_volume.remove_directory(("d",), with_contents=bool(number % 2)),
        )
        there = [name for page in own_volume.entries(()) for name, _ in page]
        if there:
            assert kinds(outcomes) == {"NoneType": 1, "DirectoryNotEmpty": 1}
            own_volume.remove_directory(("d",), with_contents=True)
        else:
            assert outcomes[1] is None
    sweep_until_clean(own_volume)
    assert own_volume.store.meta.size() == 0


def test_many_create_in_one_directory(own_volume, other_volume):
    def create(volume, start):
        def run():
            for number in range(start, start + 20):
                volume.write_file((f"f{number}",), b"%d" % number)

        return run

    at_once(*(create([own_volume, other_volume][n % 2], n * 20) for n in range(4)))
    listed = sorted(name for page in own_volume.entries(()) for name, _ in page)
    assert listed == sorted(f"f{number}" for number in range(80))
    assert fsck(own_volume).is_clean


def sealed(number: int, num_bytes: int) -> bytes:
    body = struct.pack("<q", number) + os.urandom(num_bytes)
    return hashlib.blake2b(body, digest_size=16).digest() + body


def number_in(data: bytes) -> int:
    """Read the number from `sealed` data. Fails if the data is torn."""
    assert hashlib.blake2b(data[16:], digest_size=16).digest() == data[:16], f"torn: {len(data)} bytes"
    return int(struct.unpack("<q", data[16:24])[0])


SECONDS = float(os.environ.get("SHARING_S", "6"))


def test_eight_writers_and_eight_readers_of_one_state_file(own_volume, new_volume, own_name):
    """A state file like TensorFlow's "checkpoint", written aside and renamed: its count never decreases, none is lost.

    Each writer holds a lock file, created exclusively, while it adds one, so every addition must be counted.
    """
    end = time.monotonic() + SECONDS
    own_volume.write_file(("state",), sealed(0, 30_000))
    added, seen = Counter(), Counter()

    def add(number, volume):
        while time.monotonic() < end:
            try:
                volume.write_file(("lock",), b"", OpenMode.CREATE)
            except PathExists:
                time.sleep(0.01)
                continue
            count = number_in(read_all(volume, ("state",)))
            volume.write_file((f"new{number}",), sealed(count + 1, (count % 7) * 10_000))
            volume.rename((f"new{number}",), ("state",))
            added[number] += 1
            volume.remove_file(("lock",))

    def watch(number, volume):
        last = 0
        while time.monotonic() < end:
            count = number_in(read_all(volume, ("state",)))
            assert count >= last, "the state file went back"
            last = count
            seen[number] += 1

    with ExitStack() as opened, ThreadPoolExecutor(16) as pool:
        clients = [opened.enter_context(new_volume(own_name, block_bytes=BLOCK)) for _ in range(8)]
        futures = [pool.submit(add, n, clients[n]) for n in range(8)]
        futures += [pool.submit(watch, n, clients[n]) for n in range(8)]
        for future in futures:
            future.result()
    assert number_in(read_all(own_volume, ("state",))) == added.total() > 0
    assert all(seen[n] for n in range(8))


def forked(call):
    """Run a call in a forked child, as a data loader does. Returns its result."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        answer: object = None
        try:
            signal.alarm(300)
            answer = call()
        except BaseException as error:  # noqa: BLE001 - the parent shows it
            answer = repr(error)
        finally:
            sender.send(answer)
            os._exit(0)
    sender.close()
    try:
        return receiver.recv() if receiver.poll(330) else "no answer"
    finally:
        os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_reads_and_writes_by_itself(own_volume, quick_leases):
    content = os.urandom(100_000)
    own_volume.write_file(("f",), content)
    writer = own_volume.open_write(("w",))
    writer.write(content)
    with own_volume.open_read(("f",)) as reader:
        assert read_from(reader, 0, 20_000) == content[:20_000]

        def in_child():
            found = read_from(reader, 10_000, 50_000) == content[10_000:60_000]
            own_volume.write_file(("child",), content)
            found &= read_all(own_volume, ("child",)) == content
            reader.close()
            try:
                writer.write(b"x")
            except ValueError as error:
                writer.discard()
                own_volume.close()
                return found, str(error)
            return found, "the parent's writer takes bytes"

        answer = forked(in_child)
        assert answer == (True, "an igfs file that is open for writing belongs to the process that opened it")
        assert read_from(reader, 0, 100_000) == content
    writer.close()
    assert read_all(own_volume, ("w",)) == read_all(own_volume, ("child",)) == content
    assert fsck(own_volume).is_clean


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_is_not_stopped_by_locks_that_were_held(own_volume, quick_leases):
    own_volume.write_file(("f",), bytes(100_000))
    with own_volume.open_read(("f",)) as reader:
        read_from(reader, 0, 10)
        keeper, quota, collector = own_volume._leases, own_volume._quota, own_volume.collector
        with (
            keeper._wake,
            quota._lock,
            collector._lock,
            own_volume.tree._lock,
            reader._lock,
            own_volume.store._lock,
        ):

            def in_child():
                found = read_from(reader, 0, 100_000)
                own_volume.write_file(("g",), found)
                own_volume.collector.sweep(10)
                reader.close()
                return len(found)

            answer = forked(in_child)
    assert answer == 100_000
    assert read_all(own_volume, ("g",)) == bytes(100_000)


def test_a_writer_taken_for_dead_cannot_publish(own_volume, other_volume):
    """Its lease is gone, as after a laptop's sleep. Sweeping its blocks leaves those of the old file."""
    own_volume.write_file(("f",), b"old")
    writer = own_volume.open_write(("f",))
    writer.write(os.urandom(100_000))
    client = next(key for key in own_volume.collector.records() if key.startswith(LEASE))
    own_volume.store.journal.remove(client)
    other_volume.sweep(10)
    with pytest.raises(StaleFile, match="dead"):
        writer.close()
    assert read_all(other_volume, ("f",)) == b"old"
    sweep_until_clean(other_volume)
    assert other_volume.store.blocks.size() == 0


def test_a_writer_taken_for_dead_cannot_reserve_more_and_then_publish(new_volume, own_name, other_volume):
    """Its first blocks are gone. A new reservation must not make the journal forget that."""
    volume = new_volume(own_name, block_bytes=16_384)
    volume.write_file(("f",), b"old")
    writer = volume.open_write(("f",))
    writer.write(bytes(10 * 16_384))
    writer._blocks.finish()
    other_volume.collector.abandon(writer._blocks.intent_key)
    with pytest.raises(StaleFile, match="took it for dead"):
        writer.write(bytes(30 * 16_384))  # more than the first reservation
    with pytest.raises(StaleFile, match="took it for dead"):
        writer.close()
    assert read_all(other_volume, ("f",)) == b"old"
    volume.close()
    sweep_until_clean(other_volume)
    assert fsck(other_volume).is_clean
    assert other_volume.store.blocks.size() == 0


def test_what_a_replacement_leaves_is_gone_when_its_writer_hangs_up(own_volume, other_volume):
    own_volume.write_file(("f",), bytes(100_000))
    own_volume.write_file(("f",), b"small")
    own_volume.close()
    assert other_volume.store.blocks.size() == 0
    assert read_all(other_volume, ("f",)) == b"small"


def test_a_writer_whose_file_was_replaced_is_told(own_volume, other_volume):
    with (
        pytest.raises(StaleFile, match="another process replaced or removed"),
        own_volume.open_write(("f",)) as writer,
    ):
        writer.write(b"1")
        writer.flush()
        other_volume.write_file(("f",), b"2")
        writer.write(b"3")
    assert read_all(own_volume, ("f",)) == b"2"


def test_a_change_that_cannot_be_made_ends_with_the_reason(own_volume, monkeypatch):
    from ignite_tf_magic.igfs import store

    monkeypatch.setattr(store, "RETRY_S", 0.2)
    own_volume.make_directory(("d",))

    def spoil(changes):
        key = f"e/{0:022x}/d"
        row = changes.read([key])[key]
        own_volume.store.meta.put(key, row)
        changes.write({key: row})

    with pytest.raises(DeadlineExceeded, match=r"0.2 s.*conflict"):
        own_volume.store.transact(spoil)
