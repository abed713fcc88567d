"""Scan pages for the walkers: rows of any layout in a node's format, and their layouts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.objects import BinaryObject, BinaryType, binary_type_of, schema_id
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.typed_values import TypedArray
from ignite_tf_magic.protocol.write_values import code_of, write_value


@dataclass
class Pages:
    rows: bytes
    num_rows: int
    types: dict[int, BinaryType]

    def layout(self, **options) -> RowLayout:
        finder = LayoutFinder(self.types.get, **options)
        finder.add(memoryview(self.rows), self.num_rows)
        return finder.layout()


def make_pages(rows, types=None) -> Pages:
    """Encode (key, value) pairs; objects are wrapped as nodes wrap them."""
    found: dict[int, BinaryType] = dict(types or {})
    writer = Writer()
    for key, value in rows:
        for item in (key, value):
            _learn(item, found)
            _write(writer, item)
    return Pages(bytes(writer.data), len(rows), found)


def _write(writer: Writer, value) -> None:
    if isinstance(value, BinaryObject):
        inner = Writer()
        write_value(inner, value)
        writer.int8(27).int32(len(inner.data)).raw(inner.data).int32(0)
    else:
        write_value(writer, value)


def _learn(value, found: dict[int, BinaryType]) -> None:
    """Register types as a cluster does: all schemas, and the fields of all of them."""
    if isinstance(value, list):
        for item in value:
            _learn(item, found)
    if not isinstance(value, BinaryObject):
        return
    for item in value.fields.values():
        _learn(item, found)
    mine = binary_type_of(value.type_name, {name: code_of(item) for name, item in value.fields.items()})
    known = found.get(mine.type_id, mine)
    fields = {**mine.fields, **{n: f for n, f in known.fields.items() if f[0] != 101}}
    ids = tuple(field_id for _, field_id in mine.fields.values())
    found[mine.type_id] = BinaryType(
        mine.type_id, value.type_name, fields, {**known.schemas, schema_id(ids): ids}
    )


def field_values(kind: str, length: int):
    """Draw values of one field: always one type; arrays have one length or several."""
    number = st.integers(-100, 100)
    if kind == "text":
        # Longer texts need wider offsets in the object.
        return st.text(max_size=12) | st.sampled_from([300, 70_000]).map(lambda n: "x" * n)
    if kind == "bytes":
        return st.binary(max_size=20)
    if kind == "uuid":
        return st.builds(lambda n: uuid.UUID(int=n), st.integers(0, (1 << 128) - 1))
    if kind == "moment":
        return number.map(lambda n: np.datetime64(n * 1_000_003, "us"))
    if kind == "ragged":
        return st.lists(number, max_size=5).map(lambda v: np.array(v, np.float32))
    if kind == "texts":
        return st.lists(st.text(max_size=3), max_size=4).map(lambda v: TypedArray(v, TypeCode.STRING_ARRAY))
    if kind.startswith("array "):
        return st.lists(number, min_size=length, max_size=length).map(
            lambda v: np.array(v).astype(kind.split()[1])
        )
    return number.map(lambda n: np.array(n).astype(kind)[()])


FIXED = ["i1", "i2", "i4", "i8", "f4", "f8", "u2", "?", "moment", "array u1", "array f8", "array i4"]
VARIABLE = ["text", "bytes", "uuid", "ragged", "texts"]


@st.composite
def page_sets(draw, kinds=(*FIXED, *VARIABLE), nulls=True):
    """Draw rows with keys; values are flat or nested objects or bare values, sometimes without some fields."""
    shape = draw(st.sampled_from(["bare", "flat", "nested"]))
    names = [f"f{n}" for n in range(draw(st.integers(1, 5)))]
    chosen = {name: (draw(st.sampled_from(kinds)), draw(st.integers(0, 9))) for name in names}
    key_kind = draw(st.sampled_from(["i4", "i8", "text"]))
    num_rows = draw(st.integers(1, 12))
    can_drop = nulls and draw(st.booleans())

    def fields(row):
        items = {}
        for name, (kind, length) in chosen.items():
            # The first row is complete, so every field's type is known.
            state = draw(st.integers(0, 9)) if can_drop and row else 9
            if state == 0:
                continue
            items[name] = None if state == 1 else draw(field_values(kind, length))
        return items

    rows = []
    for row in range(num_rows):
        if shape == "bare":
            kind, length = chosen[names[0]]
            value = draw(field_values(kind, length))
        elif shape == "flat":
            value = BinaryObject("Flat", fields(row))
        else:
            value = BinaryObject(
                "Outer", {"n": np.int64(draw(st.integers(0, 9))), "in": BinaryObject("In", fields(row))}
            )
        rows.append((draw(field_values(key_kind, 0)), value))
    return rows
