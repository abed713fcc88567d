"""A run: one launch of a training script on workers that each read their own partitions.

In the order in which they build on each other: `task` and `bootstrap` (in the worker's process,
standard library only), `spec`, `ports`, `states`, `directory`, `record`, `output`, `failure`, `runs`,
`manager`.
"""
