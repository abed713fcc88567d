"""Runs: each launches a training script on workers that each read their own partitions.

The modules here define a run: its record, states and orders, the rules that decide its next step (pure), its directory,
and the first steps of a worker's process (standard library only). Subpackages: `hosts` assigns partitions to hosts;
`logs` follows and copies output files; `registry` stores the run's rows in Ignite; `environments` builds Python
environments on the hosts; `handles` shows a run to users; `supervision` carries it out.
"""
