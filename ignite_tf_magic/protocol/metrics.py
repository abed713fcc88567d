"""A node's metrics, by SQL over its system view: the one statement that this package sends without pyignite.

Source: Ignite documentation, "Binary Client Protocol", SQL fields query; "System Views", METRICS.
"""

from __future__ import annotations

from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.objects import read_value, write_value
from ignite_tf_magic.protocol.ops import Operation, TypeCode

_STATEMENT = 'SELECT NAME, "VALUE" FROM SYS.METRICS WHERE NAME LIKE ?'
_MAX_ROWS = 200
_SELECT = 1
_TIMEOUT_MS = 5000


def data_region(name: str) -> Request:
    """Ask a node for the metrics of one of its data regions; answer: `parse_numbers`."""
    writer = Writer().int32(0).int8(0).int8(TypeCode.NULL).int32(_MAX_ROWS).int32(-1)
    write_value(writer, _STATEMENT)
    writer.int32(1)
    write_value(writer, f"io.dataregion.{name}.%")
    writer.int8(_SELECT)
    for _ in ("distributed joins", "local", "replicated only", "join order", "collocated", "lazy"):
        writer.bool(False)
    writer.int64(_TIMEOUT_MS).bool(False)
    return Request(Operation.QUERY_SQL_FIELDS, bytes(writer.data))


def parse_numbers(payload: memoryview) -> dict[str, int]:
    """Read the answer: the last part of each metric's name, and its value, as far as it is a whole number."""
    reader = Reader(payload)
    reader.int64()
    reader.int32()
    found = {}
    for _ in range(reader.count()):
        name, value = str(read_value(reader)), str(read_value(reader))
        if value.isdecimal():
            found[name.rpartition(".")[2]] = int(value)
    return found
