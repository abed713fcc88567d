"""The registry of runs in Ignite: rows of a cache that change by compare-and-set, and where a run's files are."""
