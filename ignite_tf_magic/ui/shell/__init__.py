"""The shell: a thin view of `session` that takes no decisions."""
