"""Runs TensorBoard in processes of its own, on the log directories of runs, wherever these are stored."""
