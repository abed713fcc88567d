"""What Ignite knows of runs: rows of a cache that change by compare-and-set, and where a run's files are."""
