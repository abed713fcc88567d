"""Code for training inside a worker: the group of workers, Keras on all of them, checkpoints, and metrics."""
