"""Supervision of runs: the plan, the host controllers, the supervisor, the owner, the reconciler."""
