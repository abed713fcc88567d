"""A node's metrics, by SQL over its system view.

Source: Ignite documentation, "System Views", METRICS.
"""

from __future__ import annotations

from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.messages import Request

_STATEMENT = 'SELECT NAME, "VALUE" FROM SYS.METRICS WHERE NAME LIKE ?'
_MAX_ROWS = 200
_TIMEOUT_MS = 5000


def data_region(name: str) -> Request:
    """Ask a node for the metrics of one of its data regions; answer: `parse_numbers`."""
    return sql.execute(_STATEMENT, [f"io.dataregion.{name}.%"], _MAX_ROWS, timeout_ms=_TIMEOUT_MS)


def parse_numbers(payload: memoryview) -> dict[str, int]:
    """Read the answer: the last part of each metric's name, and its value, as far as it is a whole number."""
    rows = sql.parse_result(payload).rows
    return {str(name).rpartition(".")[2]: int(value) for name, value in rows if str(value).isdecimal()}
