"""The notebook: magics and widgets, thin views of `session` that take no decisions."""
