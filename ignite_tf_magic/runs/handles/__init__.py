"""A run as users see it, here or from another machine: its state, output, files and errors."""
