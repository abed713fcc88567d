"""Calls _rows.c through ctypes, or `walk_python` if the library was not built."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.protocol import walk_python
from ignite_tf_magic.protocol.gathered import Gather, gather_of
from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.page_series import PageSeries, address_of, page_table
from ignite_tf_magic.protocol.walk import RowFault, Walker, item_bytes, kind_of, row_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ABI = 12
_TEMPLATE_CAPACITY = 64 * 1024
_MAX_HOLES = 512


def make_walker(layout: RowLayout) -> Walker:
    """Return a compiled walker, or a Python walker if the library was not built."""
    compiled = library()
    return walk_python.PythonWalker(layout) if compiled is None else CompiledWalker(layout, compiled)


def index_rows(
    rows: memoryview,
    num_rows: int,
    row_starts: NDArray[np.int64],
    key_hashes: NDArray[np.uint64],
    num_values: int = 1,
) -> None:
    """Find where rows start and hash their encoded keys (FNV-1a, 64 bits), for rows of any types.

    Args:
        rows: The rows of a page.
        num_rows: Number of rows.
        row_starts: Receives num_rows + 1 offsets.
        key_hashes: Receives num_rows hashes, which identify rows when a partition is read again.
        num_values: Number of values after each key.

    Raises:
        RemoteProtocolError: The page is truncated or corrupted.
    """
    compiled = library()
    if compiled is not None:
        starts, hashes = row_starts.ctypes.data, key_hashes.ctypes.data
        if not compiled.itm_index(address_of(rows), len(rows), num_rows, num_values, starts, hashes):
            return
    # Also reads what the library cannot, such as references between values, and reports errors.
    walk_python.index_rows(rows, num_rows, row_starts, key_hashes, num_values)


def measure_pages(series: PageSeries) -> list[tuple[int, int]]:
    """Return the number of rows of each page and the size in bytes of its largest row, for rows of any types.

    Args:
        series: A series from which no row was taken yet.

    Raises:
        RemoteProtocolError: A page is truncated or corrupted.
    """
    compiled = library()
    if compiled is not None:
        table, largest = series.table(), (ctypes.c_int64 * series.num_pages)()
        if not compiled.itm_measure(table, series.num_pages, largest):
            return [(page.num_rows, row_bytes) for page, row_bytes in zip(table, largest, strict=False)]
    return [(page.num_rows, walk_python.measure_page(page)) for page in series.pages()]  # as in `index_rows`


def hash_rows(table: NDArray[np.uint8], start: int, num_bytes: int, at: int) -> None:
    """Hash bytes of each row as Java does (`objects.array_hash`) and store the hash in the row.

    Args:
        table: Rows of one length, (num_rows, row_bytes), contiguous; changed in place.
        start: Where the hashed bytes begin.
        num_bytes: Number of hashed bytes.
        at: Where the four bytes of the hash go.
    """
    compiled = library()
    if compiled is None:
        walk_python.hash_rows(table, start, num_bytes, at)
    else:
        compiled.itm_hash_rows(table.ctypes.data, *table.shape, start, num_bytes, at)


def scatter_rows(rows: NDArray[Any], places: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Copy rows to their places in another array of the same dtype.

    Args:
        rows: The rows, along the first dimension; contiguous, and not of dtype object.
        places: Index of each row in `out`.
        out: Receives the rows; contiguous.
    """
    compiled = library()
    if compiled is None:
        out[places] = rows
    elif len(rows):
        row_bytes = rows.nbytes // len(rows)
        compiled.itm_scatter(rows.ctypes.data, places.ctypes.data, len(rows), row_bytes, out.ctypes.data)


def is_compiled() -> bool:
    """Return whether the compiled library is in use."""
    return library() is not None


@cache
def library() -> ctypes.CDLL | None:
    """Return the library built from _rows.c, or None if it was not built or has another version."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_rows{suffix}")
        if path.exists():
            return load(path)
    return None


def load(path: Path) -> ctypes.CDLL | None:
    """Load a build of _rows.c. Return None if it has another version."""
    library = ctypes.CDLL(str(path))
    if library.itm_abi() != _ABI:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.itm_decode.argtypes = [pointer, pointer, number, number, number, pointer, pointer, pointer]
    library.itm_decode.restype = number
    library.itm_index.argtypes = [pointer, number, number, number, pointer, pointer]
    library.itm_starts.argtypes = [pointer, number, number, pointer]
    library.itm_gather.argtypes, library.itm_gather.restype = (
        [pointer, pointer, number, number, pointer],
        None,
    )
    library.itm_join.argtypes = [pointer, number, ctypes.c_char_p, number, pointer]
    library.itm_join.restype = None
    library.itm_texts.argtypes, library.itm_texts.restype = [pointer, number, pointer, pointer], number
    library.itm_scatter.argtypes, library.itm_scatter.restype = (
        [pointer, pointer, number, number, pointer],
        None,
    )
    library.itm_measure.argtypes = [pointer, number, pointer]
    library.itm_hash_rows.argtypes = [pointer, *(number,) * 5]
    library.itm_hash_rows.restype = None
    library.itm_sweep_take.argtypes = [pointer]
    library.itm_sweep_ask.argtypes, library.itm_sweep_ask.restype = [pointer], number
    library.itm_sweep_room.argtypes, library.itm_sweep_room.restype = [pointer, number], number
    library.itm_crc32c.argtypes = [ctypes.c_uint32, pointer, number, pointer, ctypes.c_int]
    library.itm_crc32c.restype = ctypes.c_uint32
    return library


class _CNode(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32) for name in ("leaf", "first_type", "num_types", "first_child", "num_children")
    ]


class _Child(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("field_id", "node")]


class _Schema(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("type_id", "schema_id", "first_field", "num_fields")]


class _CLeaf(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("code", "kind", "item_bytes", "length", "row_bytes", "has_fill")
        ),
        ("fill", ctypes.c_void_p),
    ]


class _CFault(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32),
        ("leaf", ctypes.c_int32),
        ("row", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    ]


class _CPlan(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("num_leaves", "num_schemas", "key_node", "value_node")),
        *(
            (name, ctypes.c_void_p)
            for name in ("nodes", "types", "children", "leaves", "schemas", "schema_fields")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("cached_schema", "cached_type", "cached_valid", "cached_position")
        ),
        *((name, ctypes.c_int32) for name in ("template_bytes", "template_capacity", "num_ranges")),
        *((name, ctypes.c_void_p) for name in ("template_row", "ranges", "leaf_offsets")),
    ]


class CompiledWalker:
    """A walker with a plan for _rows.c. Not thread-safe, because the plan holds scratch space."""

    def __init__(self, layout: RowLayout, library: ctypes.CDLL) -> None:
        self._library = library
        self._fault = _CFault()
        self._kept: list[Any] = []
        self._bound: Sequence[NDArray[Any]] = ()
        self._nodes: list[_CNode] = []
        self._children: list[_Child] = []
        self._types: list[int] = []
        self._num_leaves = 0
        schemas, schema_fields = _schema_table(layout)
        key_node, value_node = self._add_node(layout.key), self._add_node(layout.value)
        num_nodes, num_children = len(self._nodes), len(self._children)
        self._plan = _CPlan(
            num_leaves=self._num_leaves,
            num_schemas=len(schemas),
            key_node=key_node,
            value_node=value_node,
            nodes=self._keep((_CNode * num_nodes)(*self._nodes)),
            types=self._keep((ctypes.c_int32 * len(self._types))(*self._types)),
            children=self._keep((_Child * num_children)(*self._children)),
            leaves=self._keep(self._leaf_table(layout.leaves())),
            schemas=self._keep((_Schema * len(schemas))(*schemas)),
            schema_fields=self._keep((ctypes.c_int32 * len(schema_fields))(*schema_fields)),
            cached_schema=self._keep((ctypes.c_int32 * num_nodes)()),
            cached_type=self._keep((ctypes.c_int32 * num_nodes)()),
            cached_valid=self._keep((ctypes.c_int32 * num_nodes)()),
            cached_position=self._keep((ctypes.c_int32 * num_children)()),
            template_capacity=_TEMPLATE_CAPACITY,
            template_row=self._keep((ctypes.c_uint8 * _TEMPLATE_CAPACITY)()),
            ranges=self._keep((ctypes.c_int32 * (2 * _MAX_HOLES + 2))()),
            leaf_offsets=self._keep((ctypes.c_int32 * _MAX_HOLES)()),
        )
        self._out = (ctypes.c_void_p * self._num_leaves)()
        self._plan_address = ctypes.addressof(self._plan)
        self._out_address = ctypes.addressof(self._out)
        self._fault_address = ctypes.addressof(self._fault)

    def _keep(self, table: Any) -> int:
        """Keep a table alive as long as the plan that points to it."""
        self._kept.append(table)
        return ctypes.addressof(table)

    def _leaf_table(self, leaves: Sequence[Leaf]) -> Any:
        table = (_CLeaf * len(leaves))()
        for entry, leaf in zip(table, leaves, strict=True):
            fill = leaf.fill or b""
            entry.code, entry.kind = leaf.code, kind_of(leaf)
            entry.length = leaf.length if leaf.is_array and leaf.length != VARIABLE else -1
            entry.item_bytes, entry.row_bytes = item_bytes(leaf), row_bytes(leaf)
            entry.has_fill = leaf.fill is not None
            entry.fill = self._keep(ctypes.create_string_buffer(fill, max(len(fill), 1)))
        return table

    def _add_node(self, node: Node) -> int:
        number = len(self._nodes)
        if isinstance(node, Leaf):
            self._nodes.append(_CNode(self._num_leaves, 0, 0, 0, 0))
            self._num_leaves += 1
            return number
        # Reserve the place before adding the children: leaves must keep the order of RowLayout.leaves().
        self._nodes.append(_CNode())
        children = [_Child(field_id, self._add_node(child)) for field_id, child in node.fields]
        places = (len(self._types), len(node.types), len(self._children), len(children))
        self._nodes[number] = _CNode(-1, *places)
        self._types += [each.type_id for each in node.types]
        self._children += children
        return number

    def bind(self, out: Sequence[NDArray[Any]]) -> None:
        """See `Walker.bind`."""
        self._bound = out
        for number, column in enumerate(out):
            self._out[number] = column.ctypes.data

    def decode(self, page: Page, num_rows: int, first_row: int) -> int:
        """See `Walker.decode`. Releases the GIL meanwhile."""
        table = page_table([page])
        self._decode(table, 1, num_rows, first_row, table[0].rows)
        return len(page.rows) - int(table[0].num_bytes)

    def decode_series(self, series: PageSeries, most_rows: int, first_row: int) -> int:
        """Decode rows of a series and return their number. Spans have addresses in place of offsets.

        Raises:
            RowFault: A row does not fit. The series is unchanged.
        """
        num_rows = self._decode(series.table(), series.num_pages, most_rows, first_row, None)
        series.took(num_rows)
        return num_rows

    def gather_of(self, leaf: Leaf) -> Gather | None:
        """Return a function that makes a part of a column from the spans of a series; see `gathered.gather_of`."""
        return gather_of(leaf, self._library)

    def _decode(self, table: Any, num_pages: int, most_rows: int, first_row: int, base: int | None) -> int:
        num_rows = self._library.itm_decode(
            self._plan_address,
            table,
            num_pages,
            most_rows,
            first_row,
            base,
            self._out_address,
            self._fault_address,
        )
        if num_rows < 0:
            fault = self._fault
            raise RowFault(fault.code, fault.leaf, fault.row, fault.offset)
        return int(num_rows)


def _schema_table(layout: RowLayout) -> tuple[list[_Schema], list[int]]:
    schemas: list[_Schema] = []
    field_ids: list[int] = []
    pending: list[Node] = [layout.key, layout.value]
    while pending:
        node = pending.pop()
        if isinstance(node, ObjectNode):
            for binary_type in node.types:
                for schema, ids in binary_type.schemas.items():
                    schemas.append(_Schema(binary_type.type_id, schema, len(field_ids), len(ids)))
                    field_ids += ids
            pending += [child for _, child in node.fields]
    return schemas, field_ids
