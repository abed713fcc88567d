"""Python environments for workers: what a project asks for, built on the hosts."""
