"""TensorBoard in processes of its own, over the log directories of runs, wherever these are kept."""
