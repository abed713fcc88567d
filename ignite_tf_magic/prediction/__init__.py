"""Batch inference: each worker of a run predicts its own partitions, and writes the outputs under the same keys."""
