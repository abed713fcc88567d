"""The layout of files in rows: records survive the round trip, damage is detected, small flushes stay cheap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.errors import CorruptRecord
from ignite_tf_magic.igfs import appends, journal, layout
from ignite_tf_magic.igfs.appends import MAX_MARKS, AppendMark
from ignite_tf_magic.igfs.journal import Garbage, Intent, Lease
from ignite_tf_magic.igfs.layout import (
    FIRST_PIECE,
    ROOT_ID,
    TAIL_BYTES,
    BlockMap,
    DirectoryNode,
    Extent,
    FileNode,
)

IDS = st.integers(1, 2**87)
TIMES = st.integers(-(2**63), 2**63 - 1)
# Few writers, so ids repeat.
WRITERS = st.one_of(st.integers(1, 3), IDS)
EXTENTS = st.builds(
    Extent, WRITERS, st.integers(0, 2**40 - 2**33), st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1)
)
SMALL_EXTENTS = st.builds(
    Extent, st.integers(1, 3), st.integers(0, 30), st.integers(1, 5), st.sampled_from([1, 3, 8])
)
MARKS = st.lists(
    st.builds(AppendMark, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=MAX_MARKS
).map(tuple)
FILES = st.builds(
    FileNode,
    IDS,
    TIMES,
    TIMES,
    st.lists(EXTENTS, max_size=20).map(tuple),
    st.binary(max_size=TAIL_BYTES),
    MARKS,
)
SMALL_FILES = st.builds(
    FileNode,
    st.just(1),
    st.just(0),
    st.just(0),
    st.lists(SMALL_EXTENTS, max_size=6).map(tuple),
    st.binary(max_size=9),
)
NODES = st.one_of(FILES, st.builds(DirectoryNode, IDS, TIMES, st.none() | TIMES))


def keys_of(extents):
    return [(key, extent.block_bytes) for extent in extents for key in extent.block_keys()]


@given(NODES)
def test_a_record_is_read_as_it_was_written(node):
    assert layout.decode(layout.encode(node)) == node


@given(FILES)
def test_clients_of_the_version_before_marks_find_the_content_of_marked_files(node):
    """Older clients read extents from the front and the tail from the end, and skip the marks between them."""
    body = layout.encode(node)[:-4]
    front = layout.encode(replace(node, tail=b"", marks=()))[:-4]
    tail_bytes = int.from_bytes(body[2 + 11 + 8 + 8 + 2 + 4 :][:4], "little")
    assert tail_bytes == len(node.tail)
    assert body[len(body) - tail_bytes :] == node.tail
    counts = slice(2 + 11 + 8 + 8 + 2 + 4, 2 + 11 + 8 + 8 + 2 + 4 + 4)
    assert body[: counts.start] == front[: counts.start]
    assert body[counts.stop : len(front)] == front[counts.stop :]


def test_a_mark_stays_until_sixteen_others_have_appended():
    mine = appends.mark_of(7, 3)
    marks = appends.marked((appends.mark_of(1, 1), appends.mark_of(7, 2)), mine)
    for other in range(100, 100 + MAX_MARKS - 1):
        marks = appends.marked(marks, appends.mark_of(other, 1))
        assert appends.holds(marks, mine)
        assert not appends.holds(marks, appends.mark_of(7, 4))
        marks = appends.marked(marks, appends.mark_of(100, 9))  # a writer has one mark
    marks = appends.marked(marks, appends.mark_of(99, 1))
    assert len(marks) == MAX_MARKS and not appends.holds(marks, mine)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 30))
def test_whether_a_mark_may_be_forgotten(writers, at):
    """After a successful append, its mark is present or reported as possibly forgotten."""
    before, now = (), ()
    for number, writer in enumerate(writers):
        if number == at:
            before, now = now, appends.marked(now, appends.mark_of(1000, 1))
        now = appends.marked(now, appends.mark_of(writer, number))
    if at < len(writers) and not appends.holds(now, appends.mark_of(1000, 1)):
        assert appends.may_be_forgotten(before, now)


def test_marks_that_a_client_of_an_earlier_version_dropped_may_be_forgotten():
    assert appends.may_be_forgotten((appends.mark_of(1, 1),), ())
    assert not appends.may_be_forgotten((), ())
    assert not appends.may_be_forgotten((), (appends.mark_of(1, 1),))


@given(NODES, st.data())
def test_a_damaged_record_is_found(node, data):
    record = bytearray(layout.encode(node))
    record[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        layout.decode(bytes(record))


@given(NODES, st.data())
def test_a_cut_record_is_found(node, data):
    record = layout.encode(node)
    with pytest.raises(CorruptRecord):
        layout.decode(record[: data.draw(st.integers(0, len(record) - 1))])


def test_a_record_of_a_later_version_is_refused():
    body = bytes([2]) + layout.encode(DirectoryNode(5, 6))[1:-4]
    with pytest.raises(CorruptRecord, match="format 2.*update"):
        layout.decode(body + layout._CHECKSUM.pack(layout.zlib.crc32(body)))


@given(IDS, st.integers(0, 2**40 - 1))
def test_a_block_key_tells_its_writer(writer, index):
    assert layout.writer_of(layout.block_key(writer, index)) == (writer, index)


def test_ids_differ_and_fit():
    found = {layout.new_id() for _ in range(1000)}
    assert len(found) == 1000
    assert all(ROOT_ID < number < 2 ** (8 * layout.ID_BYTES) for number in found)


def test_consecutive_blocks_are_spread_over_the_partitions():
    from ignite_tf_magic.protocol.affinity import partition_of_key

    writer = layout.new_id()
    used = {partition_of_key(layout.block_key(writer, index), 1024) for index in range(200)}
    assert len(used) > 100


@given(SMALL_FILES, st.integers(0, 100), st.integers(0, 100))
def test_the_block_map_finds_what_counting_finds(node, start, stop):
    found = BlockMap(node)
    naive, position = [], 0
    for key, num_bytes in keys_of(node.extents):
        naive.append((key, position, num_bytes))
        position += num_bytes
    assert found.tail_start == position
    assert position + len(node.tail) == node.size
    for offset in range(position):
        assert found.at(offset) == next(b for b in naive if b[1] <= offset < b[1] + b[2])
    wanted = [b for b in naive if b[1] < stop and b[1] + b[2] > start]
    assert found.between(start, stop) == (wanted if start < stop else [])


def test_files_of_many_gigabytes():
    node = FileNode(
        1, 0, 0, (Extent(7, 0, 5000, 1 << 20), Extent(7, FIRST_PIECE, 1, 9), Extent(7, 5000, 9, 1 << 20))
    )
    blocks = BlockMap(node)
    assert node.size == 5009 * (1 << 20) + 9
    assert blocks.at((1 << 32) + 5) == (layout.block_key(7, 4096), 1 << 32, 1 << 20)
    assert blocks.at(5000 << 20).key == layout.block_key(7, FIRST_PIECE)
    assert blocks.at((5000 << 20) + 9) == (layout.block_key(7, 5000), (5000 << 20) + 9, 1 << 20)
    assert layout.decode(layout.encode(node)) == node
    kept, block = layout.cut(node, (1 << 32) + 1)
    assert kept == (Extent(7, 0, 4096, 1 << 20),)
    assert block == (layout.block_key(7, 4096), 1 << 32, 1 << 20)


@given(st.lists(SMALL_EXTENTS, max_size=8))
def test_joining_keeps_the_blocks_and_leaves_no_neighbours(extents):
    empty = [extent._replace(num_blocks=0) for extent in extents[:2]]
    runs = layout.joined([*empty, *extents])
    assert keys_of(runs) == keys_of(extents)
    for one, next_one in pairwise(runs):
        assert (one.writer, one.first + one.num_blocks, one.block_bytes) != (
            next_one.writer,
            next_one.first,
            next_one.block_bytes,
        )


@given(SMALL_FILES, st.integers(0, 120))
def test_cutting_keeps_whole_blocks_and_names_the_cut_one(node, size):
    kept, block = layout.cut(node, size)
    whole, position, expected = [], 0, None
    for key, num_bytes in keys_of(node.extents):
        if position + num_bytes <= size:
            whole.append((key, num_bytes))
        elif position < size:
            expected = (key, position, num_bytes)
        position += num_bytes
    assert keys_of(kept) == whole
    assert block == expected


@given(st.lists(SMALL_EXTENTS, max_size=6), st.lists(SMALL_EXTENTS, max_size=6))
def test_what_another_file_does_not_use(extents, kept):
    used = {key for key, _ in keys_of(kept)}
    assert keys_of(layout.without(extents, kept)) == [b for b in keys_of(extents) if b[0] not in used]


# Sizes of flushes that loggers make, and the limits of every rule.
FLUSHES = st.one_of(
    st.integers(1, 300),
    st.integers(TAIL_BYTES - 2, TAIL_BYTES + 2),
    st.integers(1, 200_000),
    st.sampled_from([layout._SMALL_PIECE_BYTES, layout._SMALL_PIECE_BYTES - 1, layout.BLOCK_BYTES - 1]),
)


def grow(flushes, block_bytes):
    """Simulate a writer's flushes. Returns the largest number of extents, the bytes written, and the file's size."""
    extents, tail, most, written, piece, block = (), 0, 0, 0, FIRST_PIECE, 0
    for num_bytes in flushes:
        data = tail + num_bytes
        if data <= TAIL_BYTES:
            tail = data
            continue
        merged = layout.victims(extents, data, block_bytes)
        assert merged == extents[len(extents) - len(merged) :]
        data += sum(extent.num_bytes for extent in merged)
        written += data
        grown = list(extents[: len(extents) - len(merged)])
        whole, rest = divmod(data, block_bytes)
        grown.append(Extent(1, block, whole, block_bytes))
        block += whole
        tail = rest if rest <= TAIL_BYTES else 0
        if rest > TAIL_BYTES:
            grown.append(Extent(1, piece, 1, rest))
            piece += 1
        extents = layout.joined(grown)
        most = max(most, len(extents))
    return most, written, sum(extent.num_bytes for extent in extents) + tail


@pytest.mark.parametrize("block_bytes", [64 * 1024, layout.BLOCK_BYTES])
@given(st.lists(FLUSHES, max_size=400))
def test_any_series_of_flushes_leaves_few_pieces_and_rewrites_little(block_bytes, flushes):
    most, written, size = grow(flushes, block_bytes)
    assert size == sum(flushes)
    assert most <= 1 + 2 * 16
    assert written <= 4 * size + TAIL_BYTES


@pytest.mark.parametrize("num_bytes", [100, 1000, 4000, 4097, 5000, 10_000, 65_535, 65_536, 100_000, 524_289])
def test_equal_flushes_to_many_megabytes(num_bytes):
    most, written, size = grow([num_bytes] * (40_000_000 // num_bytes), layout.BLOCK_BYTES)
    assert size == 40_000_000 // num_bytes * num_bytes
    assert most <= 1 + 2 * 16
    assert written <= 3.5 * size


INTENTS = st.builds(
    Intent,
    IDS,
    st.tuples(st.integers(0, 2**39), st.integers(0, 2**39)),
    st.tuples(st.integers(FIRST_PIECE, 2**40), st.integers(FIRST_PIECE, 2**40)),
)
RECORDS = st.one_of(
    st.tuples(st.just(journal.INTENT), INTENTS),
    st.tuples(
        st.just(journal.GARBAGE),
        st.builds(Garbage, st.lists(EXTENTS).map(tuple), st.booleans(), st.lists(IDS).map(tuple)),
    ),
    st.tuples(st.just(journal.LEASE), st.builds(Lease, st.integers(1, 10**9), st.frozensets(IDS))),
)


@given(RECORDS, IDS)
def test_a_journal_record_is_read_as_it_was_written(prefixed, number):
    prefix, record = prefixed
    key = journal.key(prefix, number)
    assert journal.decode(key, journal.encode(record)) == record
    assert journal.number_of(key) == number


@pytest.mark.parametrize("value", [b"", b"[]", b"[1", b"5", b"[1, 2, 3, 4]", b"\xff", b"[[[1]], true, []]"])
@pytest.mark.parametrize("prefix", [journal.INTENT, journal.GARBAGE, journal.LEASE])
def test_a_damaged_journal_record_is_told(prefix, value):
    with pytest.raises(CorruptRecord, match="damaged"):
        journal.decode(journal.key(prefix, 1), value)


@given(IDS, st.integers(0, 50), st.integers(0, 50))
def test_an_intent_names_its_blocks(writer, num_blocks, num_pieces):
    intent = Intent(1, (3, 3 + num_blocks), (FIRST_PIECE, FIRST_PIECE + num_pieces))
    expected = [*range(3, 3 + num_blocks), *range(FIRST_PIECE, FIRST_PIECE + num_pieces)]
    keys = [key for extent in intent.extents(writer) for key in extent.block_keys()]
    assert keys == [layout.block_key(writer, index) for index in expected]
    assert journal.empty_intent(1).extents(writer) == ()
