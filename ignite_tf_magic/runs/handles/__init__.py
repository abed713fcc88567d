"""A run as one looks at it, here or elsewhere: its state, output, files and reasons."""
