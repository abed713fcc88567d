"""The tests, and what they share: `tests.bed.bed` and the like, imported from the repository's root."""
