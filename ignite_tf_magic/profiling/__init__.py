"""Inspects a cache before a training: its columns, some of its rows, its statistics."""
