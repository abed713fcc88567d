"""A run: one launch of a training script on workers that each read their own partitions. The cluster manager.

What a run is stands here: its record, states and orders, the rules by which it goes on (pure), its directory, and what
a worker's process does first (standard library only). Around it: `hosts`, which host gets which partitions; `logs`,
output as files that follow each other; `registry`, the run's rows in Ignite; `environments`, Python on the hosts;
`handles`, a run as one looks at it; `supervision`, what makes it happen.
"""
