"""Looks at a cache before a training: its columns, some of its rows, its numbers."""
