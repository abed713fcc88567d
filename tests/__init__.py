"""Tests and their shared helpers, which tests import from the repository root, as `tests.bed.bed`."""
