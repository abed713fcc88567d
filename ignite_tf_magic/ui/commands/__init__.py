"""The commands of both shells and notebooks: their arguments, their calls of `session`, and their output."""
