"""Ignite's thin client protocol as values and bytes: uses no sockets, threads or clocks.

Main modules, low to high: ops, buffer, objects, read_values, write_values, affinity, messages, connection,
layout, walk, walk_python, walk_compiled (which loads _rows.c), columns.
Source: the binary client protocol pages of Ignite's documentation. The behaviour of a real 2.17.0 node is the source
for what they omit: feature bits, response flags, wrapped objects, compact footers.
"""
