"""Training inside a worker: the group of workers, Keras on all of them, checkpoints, metrics."""
