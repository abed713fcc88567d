"""Supervision of runs: the plan, the hosts' controllers, the supervisor, the owner, the reconciler."""
