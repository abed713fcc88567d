"""Rows encoded as a block equal rows written value by value, byte for byte."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.affinity import key_hash
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.write_values import write_value


def simply(name, columns, keys, nulls, index):
    writer = Writer()
    for row in index.tolist():
        write_value(writer, keys[row])
        fields = {
            each: None if each in nulls and nulls[each][row] else column[row]
            for each, column in columns.items()
        }
        write_value(writer, BinaryObject(name, fields))
    return bytes(writer.data)


def objects(items):
    column = np.empty(len(items), object)
    column[:] = items
    return column


OBJECTS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.binary(max_size=300),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.dates(dt.date(1582, 10, 15)),
    st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
    st.lists(st.one_of(st.none(), st.text("ab", max_size=3)), max_size=3),
)


@given(st.data())
def test_blocks_are_what_is_written_value_by_value(data):
    num_rows = data.draw(st.integers(1, 9))
    flags = st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)
    seed = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    columns = {
        "mixed": objects([data.draw(OBJECTS) for _ in range(num_rows)]),
        "whole": seed.integers(-(2**63), 2**63 - 1, num_rows),
        "small": seed.integers(-128, 127, num_rows).astype(np.int8),
        "real": seed.normal(size=num_rows).astype(np.float32),
        "truth": seed.integers(0, 2, num_rows).astype(bool),
        "raw": seed.integers(0, 255, (num_rows, data.draw(st.sampled_from([0, 3, 70_000])))).astype(np.uint8),
        "at": seed.integers(-(10**17), 10**17, num_rows).view("M8[ns]"),
    }
    columns["at"][np.array(data.draw(flags), bool)] = np.datetime64("NaT")
    names = data.draw(st.permutations(sorted(columns)))
    columns = {name: columns[name] for name in names[: data.draw(st.integers(1, len(names)))]}
    nulls = {name: np.array(data.draw(flags), bool) for name in columns if data.draw(st.booleans())}
    keys = data.draw(st.sampled_from([np.arange(num_rows), objects([f"k{n}" * n for n in range(num_rows)])]))
    encoder = RowEncoder("Block", columns, keys, nulls=nulls)
    index = np.arange(num_rows)[:: data.draw(st.sampled_from([1, -1, 2]))]
    assert bytes(encoder.encode(index)) == simply("Block", columns, keys, nulls, index)


def test_what_has_no_form_is_an_error():
    with pytest.raises(LocalProtocolError):
        RowEncoder("Block", {"x": objects([object()])}, np.arange(1)).encode(np.arange(1))


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # computed by Java: new BigDecimal("...").hashCode(), and so on
        (decimal.Decimal("0"), 0),
        (decimal.Decimal("1.50"), 4652),
        (decimal.Decimal("-1.50"), -4648),
        (uuid.UUID(int=5), 5),
        (dt.datetime(1970, 1, 1, 0, 0, 0, 1000), 1),
        (dt.time(0, 0, 1), 1000),
        (True, 1231),
    ],
)
def test_hashes_of_keys(key, hashed):
    assert key_hash(key) == hashed
