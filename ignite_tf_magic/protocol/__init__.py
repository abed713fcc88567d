"""Ignite's thin client protocol as values and bytes: no socket, no thread, no clock.

Order of the modules, low to high: ops, buffer, objects, read_values, write_values, affinity, messages, connection,
layout, walk, walk_python, walk_compiled, columns (and _rows.c beside them).
Source: the binary client protocol pages of Ignite's documentation, and a real 2.17.0 node where those
are silent (feature bits, response flags, wrapped objects, compact footers).
"""
