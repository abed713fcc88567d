"""What makes a run happen: the plan, the hosts' controllers, the supervisor, the owner, the reconciler."""
