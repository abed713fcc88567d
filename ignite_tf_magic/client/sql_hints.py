"""Suggests existing table and column names that are similar to an unknown name in a statement."""

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
    """Return a hint with names similar to the one that a node does not know; empty if there is none."""
    found = _MISSING.search(message)
    if found is None:
        return ""
    kind, missing = found[1].lower(), found[2]
    try:
        if kind == "column":
            return _said(_columns(channel, statement), missing.rpartition(".")[2])
        return _said(_tables(channel), missing)
    except (ServerError, ConnectionLost):  # the user may lack permission to read the views
        return ""


def _tables(channel: Channel) -> dict[str, str]:
    """Map the bare name of each table to its name in a statement."""
    rows = _rows(channel, "SELECT SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES")
    return {
        table: quoted_name(table) if schema == "PUBLIC" else f"{quoted_name(schema)}.{quoted_name(table)}"
        for schema, table in sorted(rows, key=lambda row: row[0] == "PUBLIC")
    }


def _columns(channel: Channel, statement: str) -> dict[str, str]:
    """Map the columns of the tables that a statement names to their names in a statement."""
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
