"""The command line: a thin layer above `session` without logic of its own."""
