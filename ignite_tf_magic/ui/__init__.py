"""Code that the shell and the notebook share: options, tables, messages, and the merged output of workers."""
