"""The registry of runs in Ignite: cache rows that change by compare-and-set, and the location of each run's files."""
