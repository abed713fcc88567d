"""The notebook's magics and widgets: a thin layer above `session` without logic of its own."""
