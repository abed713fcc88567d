"""Batch inference: each worker of a run predicts its own partitions, and writes what comes out beside their keys."""
