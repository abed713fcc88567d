"""Checks everything that a run needs, and reports what is wrong."""
