"""What a refused statement may have meant: tables and columns with names that look alike."""

from __future__ import annotations

import difflib
import re

from ignite_tf_magic.client.channel import Channel
from ignite_tf_magic.errors import ConnectionLost, ServerError
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.serialization.sql_text import quoted_name

_MISSING = re.compile(r'(?i)\b(table|column|schema) "([^"]+)" not found')
_MOST_NAMES = 10_000


def near_names(channel: Channel, message: str, statement: str) -> str:
    """Say what is near to the name that a node does not know; nothing if it knows all, or nothing is near."""
    found = _MISSING.search(message)
    if found is None:
        return ""
    kind, missing = found[1].lower(), found[2]
    try:
        if kind == "column":
            return _said(_columns(channel, statement), missing.rpartition(".")[2])
        return _said(_tables(channel), missing)
    except (ServerError, ConnectionLost):  # not everybody may read the views
        return ""


def _tables(channel: Channel) -> dict[str, str]:
    """Return how each table is written in a statement, by its bare name."""
    rows = _rows(channel, "SELECT SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES")
    return {
        table: quoted_name(table) if schema == "PUBLIC" else f"{quoted_name(schema)}.{quoted_name(table)}"
        for schema, table in sorted(rows, key=lambda row: row[0] == "PUBLIC")
    }


def _columns(channel: Channel, statement: str) -> dict[str, str]:
    """Return the columns of the tables that a statement names."""
    words = {word.upper() for word in re.findall(r"\w+", statement)}
    rows = _rows(channel, "SELECT TABLE_NAME, COLUMN_NAME FROM SYS.TABLE_COLUMNS")
    return {column: quoted_name(column) for table, column in rows if table.upper() in words}


def _rows(channel: Channel, statement: str) -> list[tuple[str, str]]:
    rows = channel.call(sql.execute(statement, (), _MOST_NAMES), sql.parse_result).rows
    return [(str(first), str(second)) for first, second in rows]


def _said(known: dict[str, str], missing: str) -> str:
    alike = [name for name in known if name.upper() == missing.upper()]
    folded = {name.upper(): name for name in known}
    near = alike or [folded[each] for each in difflib.get_close_matches(missing.upper(), folded, n=3)]
    return f"\nDid you mean {' or '.join(known[name] for name in near)}?" if near else ""
