"""A sweep returns pages in order, for any order of answers and any slicing of the stream."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.connection import Fault
from ignite_tf_magic.protocol.ops import ResponseFlag
from ignite_tf_magic.protocol.sweep import Expected, Grown, Sweep, SweptSeries
from ignite_tf_magic.protocol.walk_compiled import library

REQUEST_BYTES = 29
FIRST_ID = 7
ROW = b"\x03\x01\x00\x00\x00\x03\x02\x00\x00\x00"


def sweep_of(sizes, max_asked=4, max_bytes=1000):
    rows = np.array(sizes, np.int64)
    partitions = np.arange(100, 100 + len(sizes))
    expected = Expected(partitions, rows, rows * len(ROW), np.full(len(sizes), 16, np.int64))
    return Sweep(library(), 5, expected, FIRST_ID, max_asked, max_bytes, bytearray)


def frame(request_id, body, flags=0):
    answer = struct.pack("<qh", request_id, flags) + body
    return struct.pack("<i", len(answer)) + answer


def page(request_id, num_rows, *, has_more=False, topology=False):
    body = struct.pack("<qi", 1000 + request_id, num_rows) + ROW * num_rows + bytes([has_more])
    if topology:
        return frame(request_id, struct.pack("<qi", 3, 1) + body, ResponseFlag.TOPOLOGY_CHANGED)
    return frame(request_id, body)


def feed(sweep, data):
    """Feed bytes as space allows. Returns the outcomes of all steps."""
    outcomes = []
    while data:
        space = sweep.space()
        part = data[: len(space)]
        space[: len(part)] = part
        sweep.received(len(part))
        data = data[len(part) :]
        while (outcome := sweep.take()) is not None:
            outcomes.append(outcome)
            if not isinstance(outcome, SweptSeries):
                break
    return outcomes


def ids_in(requests):
    data = bytes(requests)
    assert len(data) % REQUEST_BYTES == 0
    return [struct.unpack_from("<q", data, at + 6)[0] for at in range(0, len(data), REQUEST_BYTES)]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.data())
@settings(deadline=None, max_examples=200)
def test_pages_come_in_order_however_the_answers_come(sizes, data):
    sweep = sweep_of(sizes, max_asked=data.draw(st.integers(1, 6)))
    under_way, given_rows, stream = [], [], b""
    while not sweep.is_done:
        under_way += ids_in(sweep.requests())
        if under_way:
            answered = data.draw(st.sampled_from(under_way))
            under_way.remove(answered)
            stream += page(answered, sizes[answered - FIRST_ID], topology=data.draw(st.booleans()))
        part = data.draw(st.integers(0, len(stream))) if under_way else len(stream)
        for outcome in feed(sweep, stream[:part]):
            assert isinstance(outcome, SweptSeries) and outcome.as_expected
            assert outcome.first == len(given_rows)
            for each in outcome.series.pages():
                assert bytes(each.rows) == ROW * each.num_rows
                given_rows.append(each.num_rows)
        stream = stream[part:]
    assert given_rows == sizes


def test_what_is_under_way_is_bounded_by_pages_and_by_bytes():
    sweep = sweep_of([10, 10, 10, 500, 1, 1], max_asked=4, max_bytes=250)
    assert ids_in(sweep.requests()) == [7, 8]
    feed(sweep, page(8, 10))  # not its turn, but its bytes still count
    assert ids_in(sweep.requests()) == []
    feed(sweep, page(7, 10))
    assert ids_in(sweep.requests()) == [9]
    feed(sweep, page(9, 10))
    assert ids_in(sweep.requests()) == [10]  # larger than the bound, so requested alone
    feed(sweep, page(10, 500))
    assert ids_in(sweep.requests()) == [11, 12]


@pytest.mark.parametrize("num_rows", [3, 5])
def test_a_partition_with_other_rows_than_expected_is_noticed(num_rows):
    sweep = sweep_of([4, 4])
    sweep.requests()
    outcomes = feed(sweep, page(7, num_rows) + page(8, 4))
    assert [outcome.as_expected for outcome in outcomes] == [False]
    assert outcomes[0].series.num_rows == num_rows + 4


def test_a_page_larger_than_the_buffer_makes_it_grow_and_keeps_what_waits():
    sweep = sweep_of([4, 4])
    sweep.requests()
    assert feed(sweep, page(8, 4)) == []
    (outcome,) = feed(sweep, page(7, 100_000))
    assert [each.num_rows for each in outcome.series.pages()] == [100_000, 4]
    assert bytes(outcome.series.pages()[1].rows) == ROW * 4


def test_a_partition_that_has_grown_to_several_pages_ends_the_sweep_with_its_cursors_named():
    sweep = sweep_of([4, 4, 4])
    sweep.requests()
    first, grown = feed(sweep, page(7, 4) + page(8, 16, has_more=True))
    assert first.series.num_pages == 1 and isinstance(grown, Grown)
    assert not sweep.is_quiet
    assert isinstance(feed(sweep, page(9, 4))[-1], Grown)
    assert sweep.is_quiet and sweep.num_taken == 1
    assert sweep.open_cursors() == [1008]


def test_a_fault_is_given_and_a_notification_passed_over():
    sweep = sweep_of([4])
    sweep.requests()
    text = b"\x09" + struct.pack("<i", 4) + b"gone"
    note = frame(99, struct.pack("<h", 2007), ResponseFlag.NOTIFICATION)
    fault = frame(FIRST_ID, struct.pack("<i", 1001) + text, ResponseFlag.ERROR)
    assert feed(sweep, note + fault) == [Fault(FIRST_ID, 1001, "gone")]


@pytest.mark.parametrize(
    "answer",
    [
        page(6, 1),
        page(8, 1),
        page(7, -1),
        page(7, 1)[:14] + page(7, 1)[14:].replace(b"\x01\x00\x00\x00", b"\x09\x00\x00\x00", 1),
        frame(7, b"\x00" * 8),
        struct.pack("<i", 0),
        struct.pack("<i", -5),
    ],
)
def test_an_answer_that_is_no_page_is_refused(answer):
    sweep = sweep_of([1])
    sweep.requests()
    with pytest.raises(RemoteProtocolError):
        feed(sweep, answer + b"\x00" * 8)


@given(st.binary(min_size=1, max_size=400))
@settings(deadline=None, max_examples=300)
def test_rubbish_never_crashes_and_never_hangs(rubbish):
    sweep = sweep_of([3, 3, 3])
    sweep.requests()
    with suppress(RemoteProtocolError):
        feed(sweep, page(7, 3)[: len(rubbish) % 40] + rubbish)
